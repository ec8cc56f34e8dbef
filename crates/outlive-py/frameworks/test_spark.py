"""Spark: a real session on this machine."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

os.environ["PYSPARK_PYTHON"] = sys.executable

import outlive
import outlive.spark
import pytest
from conftest import Script, kill_rounds, until
from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    local = builder.config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1")
    session = local.getOrCreate()
    yield session
    session.stop()


def test_tasks_attach_and_progress_is_counted(spark: Any, registry: outlive.Registry) -> None:
    with outlive.spark.run(spark, "it", registry=registry.url) as run:
        reference = outlive.spark.broadcast(spark, run)

        def part(number: int) -> str:
            task = outlive.spark.attach(reference)
            task.verify()
            task.artifact(f"part-{number}")
            time.sleep(0.5)
            return task.id

        assert set(spark.sparkContext.parallelize(range(4), 4).map(part).collect()) == {run.id}
    view = registry.find("it")
    assert view.state == "succeeded" and sorted(view.artifacts) == [f"part-{n}" for n in range(4)]
    assert view.progress["total"] == 4 and view.labels["spark_application"]


def test_cancel_cancels_the_job_group(spark: Any, registry: outlive.Registry) -> None:
    threading.Timer(2.0, lambda: registry.cancel("it", "enough")).start()
    began = time.monotonic()
    with pytest.raises(outlive.Cancelled):
        with outlive.spark.run(spark, "it", registry=registry.url):
            spark.sparkContext.parallelize(range(2), 2).map(lambda _: time.sleep(120)).collect()
    assert time.monotonic() - began < 60
    assert registry.find("it").state == "cancelled"
    assert spark.range(10).count() == 10, "the session is of no use any more"


@pytest.mark.parametrize(
    ("victim", "expected"),
    # Spark on one machine does a task once: without its Python worker the job fails, and with it the run.
    [("driver", "dead"), ("jvm", "failed"), ("worker", "failed")],
)
@kill_rounds
def test_killed_process_is_seen_and_its_run_resumed_once(
    script: Script, registry: outlive.Registry, command: Any, tmp_path: Any, victim: str, expected: str, round: int
) -> None:
    begun = tmp_path / "begun"
    process = script.start(
        f"""
        import outlive.spark
        from pyspark.sql import SparkSession
        local = SparkSession.builder.master('local[1]').config('spark.ui.enabled', 'false')
        local = local.config('spark.driver.bindAddress', '127.0.0.1').config('spark.driver.host', '127.0.0.1')
        spark = local.getOrCreate()
        def work(attempt):
            if attempt == 1:
                with open({str(begun)!r}, 'w') as file:
                    file.write(f'{{os.getpid()}}\\n')
                time.sleep(60)
        with outlive.spark.run(spark, 'it') as run:
            run.save(run.attempt)
            print(spark.sparkContext._gateway.proc.pid, flush=True)
            spark.sparkContext.parallelize([run.attempt], 1).map(work).collect()
        """
    )
    assert process.stdout is not None
    jvm = int(process.stdout.readline())
    until(lambda: begun.exists() and begun.read_text().endswith("\n"), 600)
    os.kill({"driver": process.pid, "jvm": jvm, "worker": int(begun.read_text())}[victim], signal.SIGKILL)
    if victim == "driver":
        process.wait()
        assert registry.find("it").state == "dead"
    assert until(lambda: registry.find("it").is_over, 600)
    view = registry.find("it")
    assert (view.state, view.attempt, view.checkpoint) == (expected, 1, 1), view.reason
    resumed = command("resume", "it", "--failed")
    assert resumed.returncode == 0, resumed.stderr
    view = registry.wait("it", "600s")
    assert (view.state, view.attempt, view.checkpoint) == ("succeeded", 2, 2), view.raw
    assert command("resume", "it", "--failed").stdout == "nothing to resume\n"
