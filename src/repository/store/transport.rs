//! Bounded responses of the services.
//!
//! An object is streamed into a file. All other responses, listings, tokens and errors, are collected in memory before
//! they are read, at whatever length the service sends. So such a response has a bound here.

use std::error::Error;
use std::future::Future;
use std::pin::Pin;

use http_body_util::{BodyExt, LengthLimitError, Limited};
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody, HttpService,
    ReqwestConnector,
};

/// A page of a listing names 5,000 objects at most, and a key has 1,024 bytes, each of which XML may write as six.
const COLLECTED_BYTES_MAX: usize = 64 << 20;

#[derive(Debug, thiserror::Error)]
#[error("the answer is longer than {} MiB", COLLECTED_BYTES_MAX >> 20)]
struct Endless;

/// Makes clients with bounded responses.
#[derive(Debug, Clone, Copy)]
pub struct BoundedConnector;

impl HttpConnector for BoundedConnector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let client = ReqwestConnector::default().connect(options)?;
        Ok(HttpClient::new(BoundedService { client }))
    }
}

#[derive(Debug)]
struct BoundedService {
    client: HttpClient,
}

impl HttpService for BoundedService {
    fn call<'a, 'b>(
        &'a self,
        request: HttpRequest,
    ) -> Pin<Box<dyn Future<Output = Result<HttpResponse, HttpError>> + Send + 'b>>
    where
        'a: 'b,
        Self: 'b,
    {
        Box::pin(async move {
            // A request for anything but an object has a query.
            let is_object = request.method().as_str() == "GET" && request.uri().query().is_none();
            let response = self.client.execute(request).await?;
            if is_object && response.status().is_success() {
                return Ok(response);
            }
            let (parts, body) = response.into_parts();
            let bounded = Limited::new(body, COLLECTED_BYTES_MAX).map_err(bounded_error);
            Ok(HttpResponse::from_parts(parts, HttpResponseBody::new(bounded)))
        })
    }
}

fn bounded_error(error: Box<dyn Error + Send + Sync>) -> HttpError {
    if error.is::<LengthLimitError>() {
        return HttpError::new(HttpErrorKind::Decode, Endless);
    }
    match error.downcast::<HttpError>() {
        Ok(error) => *error,
        Err(error) => HttpError::new_boxed(HttpErrorKind::Unknown, error),
    }
}
