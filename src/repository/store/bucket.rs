//! A model repository in a bucket: listed over the network, copied to this host when a model is loaded.
//!
//! Only control threads call it. Each store has a runtime of its own, driven by the calling thread, so that no thread
//! is kept for it; and every request has a time limit, so that a service that does not answer blocks neither polling
//! nor loading.

use std::fmt;
use std::fs::{DirBuilder, File, OpenOptions};
use std::future::Future;
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::path::Path as Key;
use object_store::{ObjectStore, ObjectStoreExt};
use tokio::runtime::{Builder, Runtime};

use super::environment::Environment;
use super::failure::{BucketRequest, Failure};
use super::listing::{self, LIST_TIMEOUT, Listing, RemoteFile};
use super::location::BucketLocation;
use super::scratch::Scratch;
use super::{LocalModel, Store, TreeStamp, check_name, client, credentials};
use nereid_request::Status;

/// Files of a model that are copied at the same time.
const DOWNLOADS_MAX: usize = 8;

/// Time limit of a file's copy: a fixed start, and time for its size at the slowest rate that is still progress.
const COPY_TIMEOUT: Duration = Duration::from_secs(300);
const COPY_BYTES_PER_SECOND_MIN: u64 = 64 * 1024;

/// Time limit for finding and trying credentials.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// Most names of models that a repository may hold.
const MODELS_MAX: usize = 100_000;

/// Threads for the one blocking call of the runtime, the resolution of host names.
const RESOLVERS_MAX: usize = 2;

pub struct BucketStore {
    location: String,
    place: BucketLocation,
    environment: Environment,
    scratch: Arc<Scratch>,
    /// Made at the first request, and again when credentials are refused: they may have been replaced.
    client: Mutex<Option<Arc<dyn ObjectStore>>>,
    /// `None` only during the drop.
    runtime: Option<Runtime>,
}

impl BucketStore {
    pub fn open(location: &str, place: BucketLocation, environment: Environment) -> Result<BucketStore, Status> {
        // Reads the credentials file now, so that an error in it is reported at once.
        credentials::find(location, &place, &environment)?;
        let variable = place.provider.mount_variable();
        let scratch = match (environment.path(variable), environment.path("TMPDIR")) {
            (Some(mount), _) => Scratch::make(&mount, variable)?,
            (None, Some(temporary)) => Scratch::make(&temporary, "TMPDIR")?,
            (None, None) => Scratch::make(Path::new("/tmp"), "default")?,
        };
        let runtime = Builder::new_current_thread().enable_all().max_blocking_threads(RESOLVERS_MAX).build();
        let runtime = runtime
            .map_err(|error| Status::internal(format!("no runtime for the repository '{location}': {error}")))?;
        Ok(BucketStore {
            location: location.to_owned(),
            place,
            environment,
            scratch,
            client: Mutex::default(),
            runtime: Some(runtime),
        })
    }

    /// Runs `work` with a client; once more with a new client if the credentials of a used one are refused.
    fn call<T, W, F>(&self, request: BucketRequest<'_>, work: W) -> Result<T, Status>
    where
        W: Fn(Arc<dyn ObjectStore>) -> F,
        F: Future<Output = Result<T, Failure>>,
    {
        let runtime =
            self.runtime.as_ref().ok_or_else(|| Status::unavailable("the repository's store is being closed"))?;
        let answer = runtime.block_on(async {
            let (client, is_new) = self.client().await?;
            match work(client).await {
                Err(failure) if failure.is_denied() && !is_new => {
                    self.forget_client();
                    let (client, _) = self.client().await?;
                    work(client).await
                }
                answer => answer,
            }
        });
        answer.map_err(|failure| {
            if failure.is_denied() {
                self.forget_client();
            }
            failure.status(request, &self.location, &self.place)
        })
    }

    /// The client, and whether it was made for this request.
    async fn client(&self) -> Result<(Arc<dyn ObjectStore>, bool), Failure> {
        let cached = self.client.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(client) = cached {
            return Ok((client, false));
        }
        let credential = credentials::find(&self.location, &self.place, &self.environment)
            .map_err(|status| Failure::Local(status.message.into_owned()))?;
        let connecting = client::connect(&self.place, &credential, &self.environment);
        let client = tokio::time::timeout(CONNECT_TIMEOUT, connecting)
            .await
            .map_err(|_| Failure::TooSlow(CONNECT_TIMEOUT))??;
        *self.client.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&client));
        Ok((client, true))
    }

    fn forget_client(&self) {
        *self.client.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// The key of a model's directory; `None` if the name cannot be one.
    fn directory_of(&self, model: &str) -> Option<Key> {
        let prefix = self.place.prefix.as_ref();
        let key = if prefix.is_empty() { model.to_owned() } else { format!("{prefix}/{model}") };
        Key::parse(key).ok()
    }

    fn list(&self, model: &str) -> Result<Option<Listing>, Status> {
        check_name(model)?;
        let Some(directory) = self.directory_of(model) else { return Ok(None) };
        self.call(BucketRequest::Model(model), |client| {
            let directory = directory.clone();
            async move { listing::list(client.as_ref(), &directory).await }
        })
    }
}

impl Store for BucketStore {
    fn location(&self) -> &str {
        &self.location
    }

    fn models(&self) -> Result<Vec<String>, Status> {
        self.call(BucketRequest::Models, |client| {
            let prefix = self.place.prefix.clone();
            async move { models_in(client.as_ref(), &prefix).await }
        })
    }

    fn stamp(&self, model: &str) -> Result<Option<TreeStamp>, Status> {
        Ok(self.list(model)?.map(|listing| listing.stamp()))
    }

    fn localize(&self, model: &str) -> Result<LocalModel, Status> {
        let Some(listing) = &self.list(model)? else {
            let location = self.location.trim_end_matches('/');
            return Err(Status::internal(format!("directory or file does not exist at {location}/{model}")));
        };
        let copy = self.call(BucketRequest::Copy(model), |client| async move {
            let copy = self.scratch.copy(model).map_err(|error| no_folder(Path::new(model), &error))?;
            copy_tree(client.as_ref(), listing, copy.path()).await?;
            Ok(copy)
        })?;
        Ok(LocalModel::of_copy(copy))
    }
}

impl fmt::Debug for BucketStore {
    /// The client would show its credentials.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BucketStore").field("location", &self.location).finish_non_exhaustive()
    }
}

impl Drop for BucketStore {
    fn drop(&mut self) {
        // A thread may be blocked in a name resolution; the drop does not wait for it.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// The directories right below `prefix`. An empty prefix is a repository without models: when its last model goes, a
/// repository's own directory goes too.
async fn models_in(client: &dyn ObjectStore, prefix: &Key) -> Result<Vec<String>, Failure> {
    let prefix = (!prefix.as_ref().is_empty()).then_some(prefix);
    let listed = tokio::time::timeout(LIST_TIMEOUT, client.list_with_delimiter(prefix)).await;
    let listed = listed.map_err(|_| Failure::TooSlow(LIST_TIMEOUT))?.map_err(|error| Failure::of(&error))?;
    let mut names: Vec<String> =
        listed.common_prefixes.iter().filter_map(|prefix| Some(prefix.filename()?.to_owned())).collect();
    if names.len() > MODELS_MAX {
        return Err(Failure::BadKey(format!("it holds more than {MODELS_MAX} directories")));
    }
    names.sort_unstable();
    names.dedup();
    Ok(names)
}

async fn copy_tree(client: &dyn ObjectStore, listing: &Listing, target: &Path) -> Result<(), Failure> {
    // Sorted, so that each directory comes after the one it lies in.
    for directory in &listing.directories {
        let path = target.join(directory);
        DirBuilder::new().mode(0o700).create(&path).map_err(|error| no_folder(&path, &error))?;
    }
    let copies = listing.files.iter().map(|file| copy_file(client, file, target.join(&file.path)));
    stream::iter(copies).buffer_unordered(DOWNLOADS_MAX).try_collect::<()>().await
}

async fn copy_file(client: &dyn ObjectStore, file: &RemoteFile, target: PathBuf) -> Result<(), Failure> {
    let limit = COPY_TIMEOUT + Duration::from_secs(file.size_bytes / COPY_BYTES_PER_SECOND_MIN);
    match tokio::time::timeout(limit, download(client, file, &target)).await {
        Ok(done) => done,
        Err(_) => Err(Failure::TooSlow(limit)),
    }
}

/// Streams an object into a new file: only one piece of it is in memory at a time.
async fn download(client: &dyn ObjectStore, file: &RemoteFile, target: &Path) -> Result<(), Failure> {
    let answer = client.get(&file.key).await.map_err(|error| match Failure::of(&error) {
        Failure::Absent { .. } => Failure::Other { cause: format!("'{}' went away meanwhile", file.key) },
        failure => failure,
    })?;
    let expected = answer.meta.size;
    let mut local = OpenOptions::new().write(true).create_new(true).mode(0o600).open(target);
    let local: &mut File = local.as_mut().map_err(|error| disk("make the file", target, error))?;
    let mut written: u64 = 0;
    let mut pieces = answer.into_stream();
    while let Some(piece) = pieces.try_next().await.map_err(|error| Failure::of(&error))? {
        local.write_all(&piece).map_err(|error| disk("write the file", target, &error))?;
        written += piece.len() as u64;
    }
    if written != expected {
        return Err(Failure::Other { cause: format!("'{}' ended after {written} of {expected} bytes", file.key) });
    }
    Ok(())
}

fn no_folder(path: &Path, error: &io::Error) -> Failure {
    Failure::Local(format!("Failed to create local folder: {}, errno:{error}", path.display()))
}

fn disk(what: &str, path: &Path, error: &io::Error) -> Failure {
    let shown = path.display();
    Failure::Local(match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            format!("there is no room left on the disk to {what} '{shown}': {error}")
        }
        _ => format!("failed to {what} '{shown}': {error}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_of_a_full_disk_names_the_file_that_did_not_fit() {
        let at = Path::new("/mount/model/1/weights");
        for (number, start) in [
            (libc::ENOSPC, "there is no room left on the disk to write the file '/mount/model/1/weights': "),
            (libc::EDQUOT, "there is no room left on the disk to write the file '/mount/model/1/weights': "),
            (libc::EACCES, "failed to write the file '/mount/model/1/weights': "),
        ] {
            let Failure::Local(text) = disk("write the file", at, &io::Error::from_raw_os_error(number)) else {
                panic!("a failure of this host");
            };
            assert!(text.starts_with(start), "{text}");
        }
    }

    #[test]
    fn a_store_shows_no_credentials_and_understands_keys_below_its_place() {
        let mount = super::super::tests::folder();
        let environment = Environment::capture(&|name| match name {
            "TRITON_AWS_MOUNT_DIRECTORY" => Some(mount.path().into()),
            "AWS_SECRET_ACCESS_KEY" | "AWS_ACCESS_KEY_ID" => Some("hush".into()),
            _ => None,
        });
        for (location, model, expected) in [
            ("s3://bucket", "model", Some("model")),
            ("s3://bucket/a/b", "mo del%20", Some("a/b/mo del%20")),
            ("s3://bucket/a", "mo\tdel", None),
        ] {
            let place = super::super::location::parse(location).expect("a location").expect("a bucket");
            let store = BucketStore::open(location, place, environment.clone()).expect("a store");
            assert_eq!(store.directory_of(model).as_ref().map(Key::as_ref), expected);
            assert!(!format!("{store:?}").contains("hush"));
        }
    }
}
