/* Ports of an embedded server: opened, used, closed, opened again, and what is refused.
 *
 * Arguments: a repository with the model `echo`, the directory of backends, "epoll" or "io_uring". */

#define _POSIX_C_SOURCE 200809L

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "check.h"
#include "threads.h"

static const char* engine;

static int descriptors(void) {
  int count = 0;
  DIR* directory = opendir("/proc/self/fd");
  expect(directory != NULL);
  for (struct dirent* entry; (entry = readdir(directory)) != NULL;) count += entry->d_name[0] != '.';
  closedir(directory);
  return count;
}

static int connected(uint32_t port) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  int peer = socket(AF_INET, SOCK_STREAM, 0);
  expect(peer >= 0);
  if (connect(peer, (struct sockaddr*)&address, sizeof address) == 0) return peer;
  close(peer);
  return -1;
}

/* Sends a request that ends its connection, and returns the status of the answer; 0: no answer. */
static int status_of(uint32_t port, const char* path, const char* header) {
  char text[4096];
  int peer = connected(port), status = 0;
  if (peer < 0) return 0;
  int length = snprintf(text, sizeof text, "GET %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n%s\r\n", path, header);
  expect(write(peer, text, (size_t)length) == length);
  size_t filled = 0;
  for (ssize_t more; filled < sizeof text - 1 && (more = read(peer, text + filled, sizeof text - 1 - filled)) > 0;)
    filled += (size_t)more;
  text[filled] = 0;
  close(peer);
  return sscanf(text, "HTTP/1.1 %d", &status) == 1 ? status : 0;
}

static NEREID_Frontend* frontend(TRITONSERVER_Server* server, NEREID_FrontendKind kind) {
  NEREID_Frontend* made = NULL;
  succeeds(NEREID_FrontendNew(&made, server, kind));
  succeeds(NEREID_FrontendSetString(made, "address", "127.0.0.1"));
  succeeds(NEREID_FrontendSetInt(made, "port", 0));
  succeeds(NEREID_FrontendSetString(made, "io_engine", engine));
  return made;
}

static uint32_t started(NEREID_Frontend* frontend) {
  uint32_t port = 0;
  succeeds(NEREID_FrontendStart(frontend));
  succeeds(NEREID_FrontendPort(frontend, &port));
  expect(port > 0);
  return port;
}

static TRITONSERVER_Server* embedded(char** argv) {
  TRITONSERVER_ServerOptions* options = NULL;
  TRITONSERVER_Server* server = NULL;
  succeeds(TRITONSERVER_ServerOptionsNew(&options));
  succeeds(TRITONSERVER_ServerOptionsSetModelRepositoryPath(options, argv[1]));
  succeeds(TRITONSERVER_ServerOptionsSetBackendDirectory(options, argv[2]));
  succeeds(TRITONSERVER_ServerNew(&server, options));
  succeeds(TRITONSERVER_ServerOptionsDelete(options));
  return server;
}

static void options_are_checked(TRITONSERVER_Server* server) {
  const TRITONSERVER_Error_Code wrong = TRITONSERVER_ERROR_INVALID_ARG;
  NEREID_Frontend* http = NULL;
  fails(NEREID_FrontendNew(&http, server, (NEREID_FrontendKind)3), wrong, "unknown kind of a front end");
  http = frontend(server, NEREID_FRONTEND_HTTP);
  succeeds(NEREID_FrontendSetBool(http, "reuse_port", true));
  succeeds(NEREID_FrontendSetBool(http, "reuse_port", false));
  fails(NEREID_FrontendSetBool(http, "port", true), wrong,
        "Key: port found, but incorrect type. Expected int Found: bool");
  fails(NEREID_FrontendSetInt(http, "thread_count", 0), wrong, "thread_count must be a number from 1 on, got 0");
  fails(NEREID_FrontendSetString(http, "forward_header_pattern", ""), wrong,
        "a front end for HTTP has no option 'forward_header_pattern'");
  fails(NEREID_FrontendRestrict(http, "everything", "key", "value"), wrong, NULL);
  succeeds(NEREID_FrontendSetInt(http, "port", 70000));
  fails(NEREID_FrontendStart(http), wrong, "port 70000 is out of range");
  succeeds(NEREID_FrontendDelete(http));
  fails(NEREID_FrontendDelete(NULL), wrong, NULL);
}

static void ports_open_and_close(TRITONSERVER_Server* server) {
  NEREID_Frontend* http = frontend(server, NEREID_FRONTEND_HTTP);
  uint32_t port = 0, other = 0;
  fails(NEREID_FrontendPort(http, &port), TRITONSERVER_ERROR_UNAVAILABLE, "HTTP server is not running.");
  fails(NEREID_FrontendStop(http), TRITONSERVER_ERROR_UNAVAILABLE, "HTTP server is not running.");
  port = started(http);
  fails(NEREID_FrontendStart(http), TRITONSERVER_ERROR_ALREADY_EXISTS, "HTTP server is already running.");
  expect(status_of(port, "/v2/health/ready", "") == 200 && status_of(port, "/v2/models/nobody", "") == 404);

  /* The port is taken. */
  NEREID_Frontend* second = frontend(server, NEREID_FRONTEND_HTTP);
  succeeds(NEREID_FrontendSetInt(second, "port", port));
  char text[80];
  snprintf(text, sizeof text, "Socket '127.0.0.1:%u' already in use ", port);
  fails(NEREID_FrontendStart(second), TRITONSERVER_ERROR_UNAVAILABLE, text);
  succeeds(NEREID_FrontendSetInt(second, "port", 0));
  succeeds(NEREID_FrontendRestrict(second, "health", "key", "secret"));
  other = started(second);
  expect(status_of(other, "/v2/health/live", "") == 403);
  expect(status_of(other, "/v2/health/live", "key: secret\r\n") == 200 && status_of(port, "/v2/health/live", "") == 200);

  NEREID_Frontend* metrics = frontend(server, NEREID_FRONTEND_METRICS);
  expect(status_of(started(metrics), "/metrics", "") == 200);
  NEREID_Frontend* grpc = frontend(server, NEREID_FRONTEND_GRPC);
  /* It speaks HTTP/2. */
  expect(status_of(started(grpc), "/v2", "") != 200);
  fails(NEREID_FrontendStart(grpc), TRITONSERVER_ERROR_ALREADY_EXISTS, "GRPC server is already running.");

  succeeds(NEREID_FrontendStop(http));
  expect(status_of(port, "/v2", "") == 0 && status_of(other, "/v2", "") == 200);
  succeeds(NEREID_FrontendDelete(http));
  succeeds(NEREID_FrontendDelete(second));
  expect(status_of(other, "/v2", "") == 0);
  succeeds(NEREID_FrontendDelete(metrics));
  succeeds(NEREID_FrontendDelete(grpc));
}

/* A client that goes before its answer must not end the process by SIGPIPE, which this program has left as it is. */
static void clients_that_leave_end_nothing(TRITONSERVER_Server* server) {
  NEREID_Frontend* http = frontend(server, NEREID_FRONTEND_HTTP);
  uint32_t port = started(http);
  const char* requests = "GET /v2 HTTP/1.1\r\nHost: x\r\n\r\nGET /v2 HTTP/1.1\r\nHost: x\r\n\r\n";
  for (int at = 0; at < 100; ++at) {
    int peer = connected(port);
    expect(peer >= 0);
    struct linger now = {.l_onoff = 1, .l_linger = 0};
    expect(setsockopt(peer, SOL_SOCKET, SO_LINGER, &now, sizeof now) == 0);
    expect(write(peer, requests, strlen(requests)) == (ssize_t)strlen(requests));
    close(peer);
  }
  expect(status_of(port, "/v2", "") == 200);
  succeeds(NEREID_FrontendDelete(http));
}

static void a_port_may_open_often(TRITONSERVER_Server* server) {
  NEREID_Frontend* http = frontend(server, NEREID_FRONTEND_HTTP);
  int threads_before = 0, descriptors_before = 0;
  for (int at = 0; at < 50; ++at) {
    expect(status_of(started(http), "/v2/models/echo", "") == 200);
    succeeds(NEREID_FrontendStop(http));
    if (at == 0) {
      descriptors_before = descriptors();
      threads_before = threads();
    }
  }
  wait_for_threads(threads_before);
  expect(descriptors() <= descriptors_before);
  succeeds(NEREID_FrontendDelete(http));
}

int main(int argc, char** argv) {
  expect(argc == 4);
  engine = argv[3];
  int before = threads();
  TRITONSERVER_Server* server = embedded(argv);
  options_are_checked(server);
  ports_open_and_close(server);
  clients_that_leave_end_nothing(server);
  a_port_may_open_often(server);

  /* The server ends first. */
  NEREID_Frontend* http = frontend(server, NEREID_FRONTEND_HTTP);
  NEREID_Frontend* closed = frontend(server, NEREID_FRONTEND_HTTP);
  uint32_t port = started(http);
  succeeds(TRITONSERVER_ServerStop(server));
  expect(status_of(port, "/v2/models/echo/ready", "") == 503 && status_of(port, "/v2/health/ready", "") != 200);
  fails(NEREID_FrontendStart(closed), TRITONSERVER_ERROR_UNAVAILABLE, "Server not ready");
  succeeds(TRITONSERVER_ServerDelete(server));
  expect(status_of(port, "/v2/models/echo/ready", "") == 503);
  fails(NEREID_FrontendStart(closed), TRITONSERVER_ERROR_UNAVAILABLE, "Server not ready");
  succeeds(NEREID_FrontendStop(http));
  expect(status_of(port, "/v2", "") == 0);
  succeeds(NEREID_FrontendDelete(http));
  succeeds(NEREID_FrontendDelete(closed));
  wait_for_threads(before);
  return 0;
}
