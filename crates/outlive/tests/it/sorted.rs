//! Lists in orders that no store keeps, page by page.

use outlive::error::Error;
use outlive::filter::Filter;
use outlive::id::RunId;
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
        for by in SortField::ALL {
            for descending in [false, true] {
                let sort = RunSort { by, descending };
                let whole = all(&registry, sort, 100).await.unwrap();
                let mut distinct = whole.clone();
                distinct.sort_unstable();
                distinct.dedup();
                assert_eq!(distinct.len(), 11, "{sort}");
                for limit in [1, 2, 10, 11] {
                    assert_eq!(all(&registry, sort, limit).await.unwrap(), whole, "{sort}, {limit} a page");
                }
            }
        }
        let by_name = all(&registry, "-name".parse().unwrap(), 100).await.unwrap();
        let found = registry.all(&Filter::of(by_name.clone())).await.unwrap();
        let name = |id: &RunId| found.iter().find(|seen| seen.run.id == *id).unwrap().run.spec.name.clone();
        let names: Vec<Option<String>> = by_name.iter().map(name).collect();
        let mut expected: Vec<Option<String>> = names.iter().filter(|name| name.is_some()).cloned().collect();
        expected.sort_by(|one, other| other.cmp(one));
        expected.extend([None, None]);
        assert_eq!(names, expected);
    });
}
