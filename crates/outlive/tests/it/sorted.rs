//! Lists in orders that no store keeps, page by page.

use std::time::Duration;

use outlive::error::Error;
use outlive::filter::Filter;
use outlive::id::RunId;
use outlive::lifecycle::QueueEdit;
use outlive::registry::{Registry, SortedPage};
use outlive::run::Spec;
use outlive::sort::{RunSort, SortField};
use outlive::testing::person;

use crate::world::on_each;

/// The runs of all pages of `limit`.
async fn all(registry: &Registry, sort: RunSort, limit: usize) -> Result<Vec<RunId>, Error> {
    let (mut found, mut page) = (Vec::new(), SortedPage { sort, after: None, limit });
    loop {
        let (ids, next) = registry.list_sorted(&Filter::default(), &page, |_| true).await?;
        assert!(ids.len() <= limit);
        found.extend(ids);
        let Some(next) = next else { return Ok(found) };
        // As a caller hands it back.
        page.after = Some(next.to_string().parse().unwrap());
    }
}

#[test]
fn every_order_has_each_run_once_on_pages_of_any_length() {
    on_each(async |world| {
        let registry = world.process();
        for number in 0..11 {
            let mut spec = Spec::new(if number % 2 == 0 { "train" } else { "etl" }, person("ada"));
            spec.name = (number % 4 != 3).then(|| format!("job.{}", number * 7 % 11));
            spec.priority = number % 3;
            registry.enqueue(spec).await.unwrap();
        }
        let edited = registry.enqueue(Spec::new("etl", person("ada"))).await.unwrap().id;
        let edit = QueueEdit { priority: Some(-7), due: None };
        assert_eq!(registry.edit(edited, edit).await.unwrap().priority(), -7);
        let mut ended = Vec::new();
        for _ in 0..3 {
            let held = registry.start(Spec::new("done", person("ada"))).await.unwrap();
            ended.push(held.id());
            world.clock.pass(Duration::from_secs(2));
            held.succeed().await.unwrap();
        }
        for by in SortField::ALL {
            for descending in [false, true] {
                let sort = RunSort { by, descending };
                let whole = all(&registry, sort, 100).await.unwrap();
                let mut distinct = whole.clone();
                distinct.sort_unstable();
                distinct.dedup();
                assert_eq!(distinct.len(), 15, "{sort}");
                for limit in [1, 2, 14, 15] {
                    assert_eq!(all(&registry, sort, limit).await.unwrap(), whole, "{sort}, {limit} a page");
                }
            }
        }
        let first = |order: &str, count: usize| {
            let (sort, registry) = (order.parse().unwrap(), &registry);
            async move { all(registry, sort, 100).await.unwrap()[..count].to_vec() }
        };
        assert_eq!(first("priority", 1).await, [edited]);
        let newest: Vec<RunId> = ended.iter().rev().copied().collect();
        for (order, expected) in [("started", &ended), ("-started", &newest), ("ended", &ended), ("-ended", &newest)] {
            assert_eq!(first(order, expected.len()).await, *expected, "{order}");
        }
        let by_name = all(&registry, "-name".parse().unwrap(), 100).await.unwrap();
        let found = registry.all(&Filter::of(by_name.clone())).await.unwrap();
        let name = |id: &RunId| found.iter().find(|seen| seen.run.id == *id).unwrap().run.spec.name.clone();
        let names: Vec<Option<String>> = by_name.iter().map(name).collect();
        let mut expected: Vec<Option<String>> = names.iter().filter(|name| name.is_some()).cloned().collect();
        expected.sort_by(|one, other| other.cmp(one));
        expected.resize(15, None);
        assert_eq!(names, expected);
    });
}
