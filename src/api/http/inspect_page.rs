//! The inspect page on the metrics port (`--allow-ui`, docs/inspect-page.md): one document for browsers, the snapshot
//! that it polls, and the changes that a key allows.
//!
//! A shard routes and checks keys; a control thread writes the snapshot, as it writes the metrics page.
//!
//! **Changes and other sites.** A page of another site can make a browser send requests here, but only such as a form
//! could send. A request with a header of its own choice is preceded by a preflight (Fetch standard, section 4.8),
//! which this port never permits: it sends no header of CORS. Every change needs the header of a key, so no other site
//! can make a browser send one, and where no key is configured there are no changes at all.

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use percent_encoding::percent_decode_str;

use crate::api::access::{Access, Restrictions};
use crate::api::audit::Audited;
use crate::api::error;
use crate::api::infer_context::InferContext;
use crate::api::mail::{Control, Mail, Post};
use crate::api::management::Management;
use crate::api::routes::{Category, Route};
use nereid_memory::{Pool, Slice};
use nereid_protocol::http1::{Head, Method, Response, ResponseHead};
use nereid_protocol::service::{CallKey, HttpReply, Replies};
use nereid_request::{RefusalReason, Status};

const HTML: &str = include_str!("ui/page.html");
const STYLE: &str = include_str!("ui/page.css");
const SCRIPT: &str = include_str!("ui/page.js");

/// Where [`HTML`] has the other two.
const STYLE_MARK: &str = "/*style*/";
const SCRIPT_MARK: &str = "/*script*/";

/// What a snapshot is asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InspectQuery {
    /// The model whose details are wanted too.
    pub model: Option<String>,
    /// The headers that allow loads and unloads, and changes of the log; none where no key is configured.
    pub repository_header: Option<String>,
    pub logging_header: Option<String>,
    /// Whether the request may read configurations, and the header by which it might.
    pub shows_config: bool,
    pub config_header: Option<String>,
}

/// Writes the snapshot as JSON; slow, so it runs on a control thread.
pub type RenderInspect = Arc<dyn Fn(&InspectQuery) -> String + Send + Sync>;

/// The meaning of a path of the page.
#[derive(Debug, PartialEq, Eq)]
enum UiRoute<'a> {
    Page,
    Data,
    Load(Cow<'a, str>),
    Unload(Cow<'a, str>),
    Logging,
}

impl UiRoute<'_> {
    /// The group whose key a change needs.
    fn category(&self) -> Option<Category> {
        match self {
            UiRoute::Page | UiRoute::Data => None,
            UiRoute::Load(_) | UiRoute::Unload(_) => Some(Category::ModelRepository),
            UiRoute::Logging => Some(Category::Logging),
        }
    }

    fn method(&self) -> Method {
        if self.category().is_some() { Method::Post } else { Method::Get }
    }
}

/// The route of a path; none: the path is not the page's.
fn route(path: &str) -> Option<UiRoute<'_>> {
    match path.strip_prefix("/ui")? {
        "" | "/" => return Some(UiRoute::Page),
        "/data" => return Some(UiRoute::Data),
        "/logging" => return Some(UiRoute::Logging),
        _ => {}
    }
    let (model, action) = path.strip_prefix("/ui/models/")?.rsplit_once('/')?;
    // A name is one segment, in which a browser encodes what has a meaning in paths.
    let model = percent_decode_str(model).decode_utf8().ok().filter(|_| !model.is_empty() && !model.contains('/'))?;
    match action {
        "load" => Some(UiRoute::Load(model)),
        "unload" => Some(UiRoute::Unload(model)),
        _ => None,
    }
}

/// The change that a request asks for, if it is one.
pub fn audited(head: &Head) -> Option<Audited> {
    let route = route(head.path()).filter(|route| route.method() == Method::Post)?;
    let category = route.category()?;
    let (action, subject) = match route {
        UiRoute::Load(model) => ("load", model.into_owned()),
        UiRoute::Unload(model) => ("unload", model.into_owned()),
        _ => ("log-settings", String::new()),
    };
    (head.method() == Method::Post).then_some(Audited { category, action, subject })
}

/// Refuses a change before its body is received: without a key, or because there is none for its group.
pub fn refuse(access: &Access, head: &Head, pool: &Pool) -> Option<Response> {
    let category = route(head.path())?.category().filter(|_| head.method() == Method::Post)?;
    if access.http.header_of(category).is_none() {
        let name = Category::ALL.iter().find(|(known, _)| *known == category).map_or("", |(_, name)| name);
        let text = format!(
            "changes over this page need a key: start the server with --http-restricted-api={name}:<header>=<value>"
        );
        return Some(error::error_body(pool, 403, &text, error::JSON));
    }
    access.http.allow_http(category, head, pool).err().map(|refusal| *refusal)
}

/// Answers the routes of the page.
pub struct InspectPage {
    pool: Pool,
    post: Post,
    control: Control,
    render: Option<RenderInspect>,
}

impl InspectPage {
    /// Without `render` there is no page.
    pub fn new(pool: Pool, post: Post, control: Control, render: Option<RenderInspect>) -> InspectPage {
        InspectPage { pool, post, control, render }
    }

    /// Answers a request if its path is the page's. False: it is not, and nothing is answered.
    pub fn http(
        &self,
        context: &InferContext,
        management: &mut Management,
        call: CallKey,
        (head, body): (&Head, &Slice),
        replies: &mut Replies,
    ) -> bool {
        let Some(render) = &self.render else { return false };
        let Some(route) = route(head.path()) else { return false };
        let answer = match route {
            _ if head.method() != route.method() => {
                Some(error::error_body(&self.pool, 405, "Method Not Allowed", error::JSON))
            }
            UiRoute::Page => Some(page(&self.pool)),
            UiRoute::Data => {
                self.render_data(call, render, query(head, &context.access));
                None
            }
            route => match refuse(&context.access, head, &self.pool) {
                Some(refusal) => Some(refusal),
                None => {
                    change(management, call, &route, body, replies);
                    None
                }
            },
        };
        if let Some(answer) = answer {
            replies.push(call, HttpReply::Answer(answer));
        }
        true
    }

    fn render_data(&self, call: CallKey, render: &RenderInspect, query: InspectQuery) {
        let job = DataJob { call, pool: self.pool.clone(), post: Some(Arc::clone(&self.post)) };
        let render = Arc::clone(render);
        (self.control)(Box::new(move || job.end(&render(&query))));
    }
}

/// Makes a change by the same code as the HTTP port.
fn change(management: &mut Management, call: CallKey, route: &UiRoute<'_>, body: &Slice, replies: &mut Replies) {
    // A load over the page brings neither a configuration nor files.
    let none = Slice::empty();
    match route {
        UiRoute::Load(model) => management.http(call, Route::Load(b"", model.as_bytes()), true, &none, replies),
        UiRoute::Unload(model) => management.http(call, Route::Unload(b"", model.as_bytes()), true, &none, replies),
        _ => management.http(call, Route::Logging, true, body, replies),
    }
}

/// A key for gRPC alone says that configurations are not for everybody, and no request here can have it.
fn withholds_config(access: &Access) -> bool {
    let is_restricted = |of: &Restrictions| of.header_of(Category::ModelConfig).is_some();
    is_restricted(&access.grpc) && !is_restricted(&access.http)
}

fn query(head: &Head, access: &Access) -> InspectQuery {
    let model = head.query().and_then(|query| query.split('&').find_map(|pair| pair.strip_prefix("model=")));
    let decoded = |model: &str| percent_decode_str(model).decode_utf8_lossy().into_owned();
    let header = |category| access.http.header_of(category).map(str::to_owned);
    InspectQuery {
        model: model.map(decoded),
        repository_header: header(Category::ModelRepository),
        logging_header: header(Category::Logging),
        // Else a server whose configurations need a key would give them away here.
        shows_config: !withholds_config(access) && access.http.lets_in(Category::ModelConfig, head),
        config_header: header(Category::ModelConfig),
    }
}

/// What keeps browsers from other uses of an answer.
fn guarded(head: ResponseHead) -> ResponseHead {
    head.header("Cache-Control", "no-store").header("X-Content-Type-Options", "nosniff")
}

/// The document, with a policy by which a browser runs its own script and style alone.
fn page(pool: &Pool) -> Response {
    static PAGE: OnceLock<(String, String)> = OnceLock::new();
    let (text, policy) = PAGE.get_or_init(|| {
        let hash = |text: &str| STANDARD.encode(ring::digest::digest(&ring::digest::SHA256, text.as_bytes()));
        let policy = format!(
            "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; connect-src 'self'; img-src data:; \
             base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
            hash(SCRIPT),
            hash(STYLE)
        );
        (HTML.replacen(STYLE_MARK, STYLE, 1).replacen(SCRIPT_MARK, SCRIPT, 1), policy)
    });
    let head = guarded(ResponseHead::new(200).content_type("text/html; charset=utf-8"));
    let head = head.header("Content-Security-Policy", policy.as_str()).header("Referrer-Policy", "no-referrer");
    Response::text(pool, head, text.as_bytes())
}

/// A call that waits for the snapshot. It is answered when this is dropped, too.
struct DataJob {
    call: CallKey,
    pool: Pool,
    post: Option<Post>,
}

impl DataJob {
    fn end(mut self, text: &str) {
        let head = guarded(ResponseHead::new(200).content_type("application/json"));
        let response = Response::text(&self.pool, head, text.as_bytes());
        self.answer(response);
    }

    fn answer(&mut self, response: Response) {
        if let Some(post) = self.post.take() {
            post(Mail::Answered { call: self.call, response });
        }
    }
}

impl Drop for DataJob {
    fn drop(&mut self) {
        if self.post.is_some() {
            let text = "the server has too much to do to write this snapshot";
            let status = Status::refused(RefusalReason::Operations, text);
            self.answer(error::http_error(&self.pool, &status, error::JSON));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::access::GivenKey;

    #[test]
    fn paths_of_the_page() {
        let named = |name: &'static str| Cow::Borrowed(name);
        for (path, expected) in [
            ("/ui", Some(UiRoute::Page)),
            ("/ui/", Some(UiRoute::Page)),
            ("/ui/data", Some(UiRoute::Data)),
            ("/ui/logging", Some(UiRoute::Logging)),
            ("/ui/models/m/load", Some(UiRoute::Load(named("m")))),
            ("/ui/models/load/unload", Some(UiRoute::Unload(named("load")))),
            ("/ui/models/%3Cimg%20src%3Dx%3E/unload", Some(UiRoute::Unload(named("<img src=x>")))),
            ("/ui/models/a%2Fb/load", Some(UiRoute::Load(named("a/b")))),
            ("/ui/models/%ff/load", None),
            ("/ui/models/a/b/load", None),
            ("/ui/models//load", None),
            ("/ui/models/m/other", None),
            ("/ui/models", None),
            ("/uix", None),
            ("/metrics", None),
            ("/", None),
        ] {
            assert_eq!(route(path), expected, "{path}");
        }
    }

    #[test]
    fn a_key_for_grpc_alone_withholds_configurations() {
        let key = |group| [GivenKey { group, header: "admin", value: "hush", name: "admin" }].into_iter();
        let (config, other) = (key("model-config"), key("health"));
        let (none, http) = (Restrictions::default(), Restrictions::http(config.clone()));
        let withholds = |http: &Restrictions, grpc: &Restrictions| {
            withholds_config(&Access { http: http.clone(), grpc: grpc.clone(), ..Access::default() })
        };
        assert!(withholds(&none, &Restrictions::grpc(config.clone())));
        assert!(!withholds(&none, &none) && !withholds(&none, &Restrictions::grpc(other)));
        // The key for HTTP decides then.
        assert!(!withholds(&http, &Restrictions::grpc(config)) && !withholds(&http, &none));
    }

    /// The hashes of the policy are those of what stands between the tags.
    #[test]
    fn the_document_is_whole_and_small() {
        assert_eq!((HTML.matches(STYLE_MARK).count(), HTML.matches(SCRIPT_MARK).count()), (1, 1));
        assert!(HTML.contains("<style>/*style*/</style>") && HTML.contains("<script>/*script*/</script>"));
        assert!(!STYLE.contains('<') && !SCRIPT.contains("</script") && !STYLE.contains(SCRIPT_MARK));
        let all = [HTML, STYLE, SCRIPT];
        assert!(all.iter().map(|part| part.len()).sum::<usize>() < 150 * 1024);
        // Nothing is fetched from elsewhere, and no text becomes markup.
        for part in all {
            let part = part.replace("http://www.w3.org/2000/svg", "");
            for word in
                ["://", "@import", "url(", "innerHTML", "outerHTML", "insertAdjacent", "eval(", "document.write"]
            {
                assert!(!part.contains(word), "{word}");
            }
        }
    }
}
