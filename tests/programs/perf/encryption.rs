//! Runs over TLS, as a user asks for them.

use super::program::{Reports, measured, perf};
use nereid_test_support::certificates::Certificates;
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::Server;
use nereid_test_support::variant::usual;

#[test]
fn servers_with_tls_are_measured_and_strangers_are_not() {
    let Some(certificates) = Certificates::make() else { return };
    let repository = Repository::new();
    repository.identity("numbers", 8, &[Pair::new("INT32", "16")]);
    let [ours, foreign] = ["authority.pem", "other.pem"].map(|name| certificates.path(name));
    let (certificate, key) = (certificates.path("client.pem"), certificates.path("client.key"));
    for service in ["http", "grpc"] {
        let flags = certificates.mutual_flags(service);
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let server = Server::start_saying(usual(), repository.path(), &flags, "Started HTTPService at ");
        let streams = if service == "grpc" { &[false, true][..] } else { &[false] };
        for &streams in streams {
            let run = |authority: &str, shows: bool| -> Vec<String> {
                let mut words = vec!["-m", "numbers", "--request-count=40", "--concurrency-range=4", "-i", service];
                words.extend(streams.then_some("--streaming"));
                let mut words: Vec<String> = words.into_iter().map(str::to_owned).collect();
                let url = match service {
                    "http" => format!("https://{}", server.http),
                    _ => server.grpc.to_string(),
                };
                words.extend(["-u".to_owned(), url]);
                let [ca, own, own_key] = match service {
                    "http" => ["https-ca-certificates", "https-client-certificate", "https-private-key"],
                    _ => ["grpc-root-certifications", "grpc-certificate-chain", "grpc-private-key"],
                };
                words.extend((service == "grpc").then(|| "--ssl-grpc-use-ssl=true".to_owned()));
                words.push(format!("--ssl-{ca}-file={authority}"));
                if shows {
                    words.push(format!("--ssl-{own}-file={certificate}"));
                    words.push(format!("--ssl-{own_key}-file={key}"));
                }
                words
            };
            let reports = Reports::new();
            let csv = reports.at("run.csv");
            let good = [run(&ours, true), vec!["-f".to_owned(), csv]].concat();
            let words: Vec<&str> = good.iter().map(String::as_str).collect();
            let outcome = measured(&words);
            assert!(outcome.stdout.contains("Request concurrency: 4\n"), "{outcome:#?}");
            assert_eq!(reports.read("run.csv").lines().count(), 2);
            // A server that somebody else vouches for, and one that wants to know who asks.
            for (words, part) in [(run(&foreign, true), "certificate"), (run(&ours, false), "")] {
                let outcome = perf(&words);
                assert_eq!(outcome.code, Some(99), "{words:?}: {outcome:#?}");
                let is_told = outcome.stderr.contains(part) && outcome.stderr.contains("error: ");
                assert!(is_told, "{words:?}: {outcome:#?}");
            }
        }
        server.stop();
    }
}
