//! Opening: many at once (L21, W08), by a role without the right (F-61), and in private.

use super::*;
use outlive::filter::Filter;
use outlive::run::{Key, Spec, StateName};
use outlive::store::Page;
use outlive::store::postgres::DatabaseAddress;

#[test]
fn l21_w08_thirty_open_a_fresh_schema_and_one_makes_it() {
    let url = Server::shared().fresh_url();
    let ids: Vec<String> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..30).map(|_| scope.spawn(|| open(&url).map(|store| store.id().to_owned()).unwrap())).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
}

/// Names the registry to a process that is to open it.
const URL: &str = "OUTLIVE_TEST_OPENING";
const NAME: &str = "fleet::opening::l21_thirty_processes_open_a_fresh_schema_and_register";

#[test]
fn l21_thirty_processes_open_a_fresh_schema_and_register() {
    const PROCESSES: usize = 30;
    if let Ok(url) = std::env::var(URL) {
        let registry = pollster::block_on(Registry::open(&url)).unwrap();
        let run = pollster::block_on(registry.start(spec("job"))).unwrap();
        pollster::block_on(run.succeed()).unwrap();
        return;
    }
    let server = Server::alone(&["fsync=off", "max_connections=120"]);
    let (url, home) = (server.fresh_url(), tempfile::tempdir().unwrap());
    let open = |_| {
        let mut inside = Command::new(std::env::current_exe().unwrap());
        inside.args(["--exact", NAME, "--nocapture"]).env(URL, &url).env("OUTLIVE_HOME", home.path());
        inside.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let processes: Vec<Child> = (0..PROCESSES).map(open).collect();
    for process in processes {
        let output = process.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let schema = schema_of(&url);
    let ended = server.psql(&format!("SELECT count(*) FROM {schema}.run WHERE state = 'succeeded'"));
    assert_eq!(ended, PROCESSES.to_string());
    assert_eq!(server.psql(&format!("SELECT count(*) FROM {schema}.meta WHERE name = 'id'")), "1");
}

#[test]
fn l22_w08_older_format_is_migrated_by_one_and_keeps_its_runs() {
    // What a later release may do to a table, and what fails or doubles if it is done twice.
    const LATER: &[&str] = &[
        "ALTER TABLE waiting ADD COLUMN colour text NOT NULL DEFAULT 'blue'",
        "CREATE TABLE IF NOT EXISTS later (x int4); INSERT INTO later VALUES (1)",
    ];
    let url = Server::shared().fresh_url();
    let store = open(&url).unwrap();
    let write = making(draft());
    let id = write.run.id;
    pollster::block_on(store.commit(vec![write])).unwrap();
    let address = || url.parse::<DatabaseAddress>().unwrap().with_migrations(LATER);
    let found: Vec<_> = std::thread::scope(|scope| {
        let find = || {
            let store = pollster::block_on(PostgresStore::open(&address())).unwrap();
            pollster::block_on(store.get(&[id])).unwrap()
        };
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(find)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(found.iter().all(|found| found.len() == 1 && found[0].run.id == id), "{found:?}");
    let schema = schema_of(&url);
    let count = |sql: &str| Server::shared().psql(&format!("SELECT count(*) FROM {schema}.{sql}"));
    assert_eq!(count("meta WHERE name = 'format' AND value = '3'"), "1");
    assert_eq!(count("waiting WHERE colour = 'blue'"), "1");
    assert_eq!(count("later"), "1");
    let older = open(&url).err().unwrap();
    assert!(matches!(older, Error::Newer { found: 3, known: 1, .. }), "{older:?}");
}

#[test]
fn w08_a_newer_format_is_refused() {
    let url = Server::shared().fresh_url();
    open(&url).unwrap();
    Server::shared().psql(&format!("UPDATE {}.meta SET value = '99' WHERE name = 'format'", schema_of(&url)));
    let refused = open(&url).err().unwrap();
    assert!(matches!(refused, Error::Newer { found: 99, .. }), "{refused:?}");
}

/// The registry as a role of its own without rights.
fn as_plain_role(url: &str) -> (String, String) {
    let name = format!("u{}", schema_of(url));
    Server::shared().psql(&format!("CREATE ROLE {name} LOGIN"));
    (url.replace("tester@", &format!("{name}@")), name)
}

#[test]
fn w08_role_without_schema_right_may_be_given_a_schema() {
    let (url, name) = as_plain_role(&Server::shared().fresh_url());
    let schema = schema_of(&url);
    let refused = open(&url).err().unwrap();
    assert!(matches!(refused, Error::Denied(_)), "{refused:?}");
    assert!(refused.to_string().contains(&format!("CREATE SCHEMA \"{schema}\" AUTHORIZATION")), "{refused}");
    Server::shared().psql(&format!("CREATE SCHEMA {schema} AUTHORIZATION {name}"));
    let store = open(&url).unwrap();
    let (other, _) = as_plain_role(&Server::shared().fresh_url());
    let theirs = other.replace(&schema_of(&other), &schema);
    // The name of the role is part of the URL too.
    let theirs = theirs.replace(&format!("u{schema}@"), &format!("u{}@", schema_of(&other)));
    let refused = open(&theirs).err().unwrap();
    assert!(matches!(refused, Error::Denied(_)), "{refused:?}");
    pollster::block_on(store.commit(vec![making(draft())])).unwrap();
}

#[test]
fn t7_11_documented_roles_are_enough() {
    let url = Server::shared().fresh_url();
    let schema = schema_of(&url);
    let docs = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/fleet.md");
    let docs = std::fs::read_to_string(docs).unwrap();
    let documented =
        docs.split_once("## Roles").unwrap().1.split_once("```sql").unwrap().1.split_once("```").unwrap().0;
    let sql =
        documented.replace("outlive_", &format!("{schema}_")).replace("SCHEMA outlive", &format!("SCHEMA {schema}"));
    Server::shared().psql(&sql);
    let of = |role: &str| url.replace("tester@", &format!("{schema}_{role}@"));
    open(&of("owner")).unwrap();
    let worker = registry(&of("worker"));
    pollster::block_on(async {
        let keyed = Spec { keys: vec![Key::limit("door", 1)], ..spec("job") };
        worker.enqueue(keyed).await.unwrap();
        for handle in worker.claim(Filter::default(), 2).await.unwrap() {
            worker.tick().await.unwrap();
            handle.set_checkpoint(1.into()).await.unwrap();
            handle.succeed().await.unwrap();
        }
        let reader = PostgresStore::read(&of("reader").parse().unwrap()).await.unwrap();
        let listed = reader.list(&Filter::default(), &Page::default()).await.unwrap().records;
        assert_eq!(listed.len(), 1);
        assert_eq!(listed[0].run.state.name(), StateName::Succeeded);
        assert_eq!(reader.counts().await.unwrap().len(), 1);
        let refused = reader.commit(vec![making(draft())]).await.unwrap_err();
        assert!(matches!(refused, Error::Denied(_)), "{refused:?}");
    });
}

#[test]
fn f_61_a_server_that_can_only_be_read_is_refused() {
    let server = Server::alone(&["fsync=off"]);
    let url = server.fresh_url();
    open(&url).unwrap();
    server.psql("ALTER DATABASE postgres SET default_transaction_read_only = on");
    let refused = |what: &str| {
        let refused = open(&url).err().unwrap();
        assert!(matches!(&refused, Error::Denied(text) if text.contains("name the primary")), "{what}: {refused:?}");
    };
    refused("set to be read-only");
    server.stop("fast");
    std::fs::write(server.data().join("standby.signal"), "").unwrap();
    server.start();
    refused("a standby");
}

/// A server that talks in private, with a certificate for `localhost`, and the root that signed it.
fn private_server(dir: &Dir) -> Server {
    let file = |name: &str| dir.0.join(name).display().to_string();
    let key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];
    let root = [
        &["req", "-x509", "-days", "2", "-subj", "/CN=root", "-keyout", &file("ca.key"), "-out", &file("ca.crt")],
        &key[..],
    ];
    succeeds("openssl", &root.concat());
    let other = [
        &["req", "-x509", "-days", "2", "-subj", "/CN=other", "-keyout", &file("o.key"), "-out", &file("other.crt")],
        &key[..],
    ];
    succeeds("openssl", &other.concat());
    let request =
        [&["req", "-subj", "/CN=server", "-keyout", &file("server.key"), "-out", &file("server.csr")], &key[..]];
    succeeds("openssl", &request.concat());
    std::fs::write(file("ext"), "subjectAltName=DNS:localhost\nbasicConstraints=CA:FALSE\n").unwrap();
    let sign =
        ["x509", "-req", "-days", "2", "-in", &file("server.csr"), "-CA", &file("ca.crt"), "-CAkey", &file("ca.key")];
    let rest = ["-CAcreateserial", "-extfile", &file("ext"), "-out", &file("server.crt")];
    succeeds("openssl", &[&sign[..], &rest[..]].concat());
    let server = Server::alone(&["fsync=off"]);
    server.stop("fast");
    for name in ["server.key", "server.crt"] {
        let into = server.data().join(name).display().to_string();
        succeeds("cp", &[&file(name), &into]);
        succeeds("chmod", &["600", &into]);
        succeeds("chown", &["--reference", &server.data().join("PG_VERSION").display().to_string(), &into]);
    }
    server.configure(&["ssl=on", "ssl_cert_file=server.crt", "ssl_key_file=server.key"]);
    server.start();
    server
}

#[test]
fn modes_of_privacy_mean_what_they_mean_to_other_clients() {
    let dir = Dir::make();
    let server = private_server(&dir);
    let (root, other) = (dir.0.join("ca.crt"), dir.0.join("other.crt"));
    let with = |host: &str, words: &str| {
        let url = server.url("outlive").replace("127.0.0.1", host).replace("sslmode=disable", words);
        let store = open(&url)?;
        let sql = "SELECT bool_and(ssl) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid)
                   WHERE application_name = 'outlive'";
        let private = server.psql(sql) == "t";
        drop(store);
        // Whoever comes next counts only its own.
        until("the connection to end", || {
            server.psql("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'outlive'") == "0"
        });
        Ok::<bool, Error>(private)
    };
    let rooted = |mode: &str, root: &std::path::Path| format!("sslmode={mode}&sslrootcert={}", root.display());
    assert!(!with("localhost", "sslmode=disable").unwrap());
    for words in ["sslmode=prefer", "sslmode=require", "connections=4"] {
        assert!(with("127.0.0.1", words).unwrap(), "{words}");
    }
    assert!(with("localhost", &rooted("verify-full", &root)).unwrap());
    assert!(with("127.0.0.1", &rooted("verify-ca", &root)).unwrap());
    assert!(with("127.0.0.1", &rooted("require", &root)).unwrap());
    for (host, words) in [
        ("127.0.0.1", rooted("verify-full", &root)),
        ("localhost", rooted("verify-full", &other)),
        ("localhost", rooted("verify-ca", &other)),
        ("localhost", rooted("require", &other)),
    ] {
        let refused = with(host, &words).err().unwrap_or_else(|| panic!("{host} {words}"));
        assert!(matches!(&refused, Error::Denied(text) if text.contains("in private")), "{words}: {refused:?}");
    }
    let plain = Server::shared().fresh_url().replace("sslmode=disable", "sslmode=require");
    let refused = open(&plain).err().unwrap();
    assert!(matches!(&refused, Error::Denied(text) if text.contains("in private")), "{refused:?}");
}
