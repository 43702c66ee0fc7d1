//! What one write of each kind costs an API server and its etcd: created, and by server-side apply.

use std::sync::{Arc, Mutex, PoisonError};

use futures::{StreamExt as _, TryStreamExt as _};

use super::{
    direct_objects::Objects,
    direct_writer::{How, Reference},
    figure::Figure,
    load::{self, CONCURRENCY},
    stages::Bench,
};

/// Writes of each kind.
const WRITES: usize = 300;

/// The objects that were written, by the number of their service.
type Written<T> = Mutex<Vec<T>>;

fn taken<T>(written: &Written<T>) -> Vec<T> {
    std::mem::take(&mut *written.lock().unwrap_or_else(PoisonError::into_inner))
}

fn keep<T>(written: &Written<T>, object: T) {
    written.lock().unwrap_or_else(PoisonError::into_inner).push(object);
}

impl Bench {
    /// Kind after kind, in the importing cluster.
    pub(super) async fn direct_kinds(&self) -> anyhow::Result<Vec<Figure>> {
        let mut figures = Vec::new();
        for how in [How::Created, How::Applied] {
            let namespace = format!("bench-kinds-{how:?}").to_lowercase();
            let cluster = &self.importer.cluster;
            load::create_namespace(cluster, &namespace).await?;
            let objects = Objects::new(&namespace, self.plan.endpoints, self.plan.seed)?;
            let reference = Arc::new(Reference::new(how, [cluster; 2], &namespace, objects));
            let (imports, exports) = (Written::default(), Written::default());
            let from = &reference;
            let numbers = || 0..WRITES;
            let mut costs = vec![
                ("services", self.cost(numbers(), async |service| from.write_derived(service).await).await?),
                ("endpointslices", self.cost(numbers(), async |service| from.write_slice(service).await).await?),
            ];
            let import = async |service| {
                keep(&imports, from.write_import_alone(service).await?);
                Ok(())
            };
            costs.push(("serviceimports", self.cost(numbers(), import).await?));
            let status = async |import| from.write_import_status(import).await;
            costs.push(("serviceimports/status", self.cost(taken(&imports), status).await?));
            let export = async |service| {
                keep(&exports, from.create_export(service).await?);
                Ok(())
            };
            self.cost(numbers(), export).await?;
            let conditions = async |export| from.write_conditions(export).await;
            costs.push(("serviceexports/status", self.cost(taken(&exports), conditions).await?));
            let change = async |service| from.change_slice(service).await;
            costs.push(("endpointslices_changed", self.cost(numbers(), change).await?));
            let how = format!("{how:?}").to_lowercase();
            let figure = |(kind, cost)| Figure::for_scale(format!("direct_{how}_{kind}"), cost, "ms/write");
            figures.extend(costs.into_iter().map(figure));
        }
        Ok(figures)
    }

    /// Processor time of the API server and etcd for each write, in milliseconds.
    async fn cost<T>(
        &self,
        all: impl IntoIterator<Item = T>,
        write: impl AsyncFn(T) -> anyhow::Result<()>,
    ) -> anyhow::Result<f64> {
        let before = self.importer.server_time()?;
        let writes = futures::stream::iter(all).map(|one| write(one)).buffer_unordered(CONCURRENCY);
        writes.try_for_each(async |()| Ok(())).await?;
        Ok((self.importer.server_time()? - before) * 1e3 / WRITES as f64)
    }
}
