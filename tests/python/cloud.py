"""Stand-ins for the services that keep model repositories in buckets, filled and steered by the test that started them.

S3 is moto, which checks signatures once a user exists. Google's and Azure's services are the few requests that a
repository makes of them, answered from a dictionary in pages of two, and so is the metadata service of a cloud host.

The first line on stdout says where everything listens. Then each line on stdin is a command, answered by one line.
"""

import base64
import email.utils
import hashlib
import json
import logging
import os
import sys
import threading
import time
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from xml.sax.saxutils import escape

# moto asks for no signatures until it is told to.
OPEN = "1000000000"
os.environ["INITIAL_NO_AUTH_ACTION_COUNT"] = OPEN

import boto3  # noqa: E402
import requests  # noqa: E402
from botocore.config import Config  # noqa: E402
from cryptography.hazmat.primitives import hashes, serialization  # noqa: E402
from cryptography.hazmat.primitives.asymmetric import padding, rsa  # noqa: E402
from moto.server import ThreadedMotoServer  # noqa: E402

PAGE = 2
BUCKET = "models"
ACCOUNT = "account"
# What requests of each kind must carry.
BEARER = "token-of-the-host"
KEY = base64.b64encode(b"a key of an azure account").decode()

# Key to (content, time of change, tag), of the bucket that Google's and Azure's services show.
objects = {}
# Keys that are listed and then not found, as if they went away in between.
lost = set()
# How the stand-in asks for authorization: "key", "token", "account" or "nobody".
wanted = {"authorization": "key"}
# What was asked since the last command "asked".
asked = []
google_key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
metadata_role = {}


def is_signed_by_the_account(token):
    """Whether a token is a JWT of the service account whose key we gave away."""
    try:
        signed, signature = token.rsplit(".", 1)
        pad = lambda text: base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        google_key.public_key().verify(pad(signature), signed.encode(), padding.PKCS1v15(), hashes.SHA256())
        return json.loads(pad(signed.split(".")[1]))["iss"] == "reader@example.com"
    except Exception:
        return False


class Service(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status, body, kind="application/xml", more=()):
        body = body if isinstance(body, bytes) else body.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in more:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def fail(self, status, code):
        self.answer(status, f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>hush</Message></Error>")

    def do_PUT(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path == "/ec2/latest/api/token":
            return self.answer(200, "session", "text/plain")
        self.fail(405, "MethodNotAllowed")

    def do_GET(self):
        url = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True))
        path = urllib.parse.unquote(url.path)
        asked.append({"path": path, "query": query, "authorization": self.headers.get("Authorization", "")})
        if path.startswith("/ec2/"):
            return self.metadata(path)
        if path == "/msi":
            token = {"access_token": BEARER, "expires_on": str(int(time.time()) + 3600), "token_type": "Bearer"}
            return self.answer(200, json.dumps(token), "application/json")
        if not self.is_authorized():
            return self.fail(403, "AuthenticationFailed")
        parts = path.lstrip("/").split("/")
        is_azure = parts[0] == ACCOUNT
        parts = parts[1:] if is_azure else parts
        if parts[0] != BUCKET:
            return self.fail(404, "ContainerNotFound" if is_azure else "NoSuchBucket")
        key = "/".join(parts[1:])
        if not key:
            return self.list(query, is_azure)
        if key not in objects or key in lost:
            return self.fail(404, "BlobNotFound" if is_azure else "NoSuchKey")
        content, changed, tag = objects[key]
        more = [("ETag", f'"{tag}"'), ("Last-Modified", email.utils.formatdate(changed, usegmt=True))]
        self.answer(200, content, "application/octet-stream", more)

    def metadata(self, path):
        place = "/ec2/latest/meta-data/iam/security-credentials/"
        if self.headers.get("X-aws-ec2-metadata-token") != "session" or not metadata_role:
            return self.fail(401, "Unauthorized")
        if path == place:
            return self.answer(200, "role", "text/plain")
        if path == place + "role":
            return self.answer(200, json.dumps(metadata_role), "application/json")
        self.fail(404, "NotFound")

    def is_authorized(self):
        given = self.headers.get("Authorization", "")
        if wanted["authorization"] == "key":
            return given.startswith(f"SharedKey {ACCOUNT}:")
        if wanted["authorization"] == "token":
            return given == f"Bearer {BEARER}"
        if wanted["authorization"] == "account":
            return given.startswith("Bearer ") and is_signed_by_the_account(given.removeprefix("Bearer "))
        return given == ""

    def list(self, query, is_azure):
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter")
        entries = {}
        for key in sorted(objects):
            if key.startswith(prefix):
                rest = key[len(prefix) :]
                is_below = delimiter and delimiter in rest
                entries[prefix + rest.split(delimiter)[0] + delimiter if is_below else key] = not is_below
        names = list(entries)
        start = int(query.get("marker" if is_azure else "continuation-token") or 0)
        page, after = names[start : start + PAGE], start + PAGE
        following = str(after) if after < len(names) else ""
        shape = azure_page if is_azure else google_page
        files = [name for name in page if entries[name]]
        self.answer(200, shape(files, [name for name in page if not entries[name]], following))


def google_page(files, prefixes, following):
    body = "".join(
        f"<Contents><Key>{escape(key)}</Key><Size>{len(objects[key][0])}</Size><ETag>{objects[key][2]}</ETag>"
        f"<LastModified>{iso(objects[key][1])}</LastModified></Contents>"
        for key in files
    )
    body += "".join(f"<CommonPrefixes><Prefix>{escape(prefix)}</Prefix></CommonPrefixes>" for prefix in prefixes)
    if following:
        body += f"<NextContinuationToken>{following}</NextContinuationToken>"
    return f"<?xml version='1.0'?><ListBucketResult>{body}</ListBucketResult>"


def azure_page(files, prefixes, following):
    body = "".join(f"<BlobPrefix><Name>{escape(prefix)}</Name></BlobPrefix>" for prefix in prefixes)
    body += "".join(
        f"<Blob><Name>{escape(key)}</Name><Properties>"
        f"<Last-Modified>{email.utils.formatdate(objects[key][1], usegmt=True)}</Last-Modified>"
        f"<Etag>{objects[key][2]}</Etag><Content-Length>{len(objects[key][0])}</Content-Length>"
        f"<Content-Type>application/octet-stream</Content-Type></Properties></Blob>"
        for key in files
    )
    return (
        f"<?xml version='1.0'?><EnumerationResults><Blobs>{body}</Blobs><NextMarker>{following}</NextMarker>"
        "</EnumerationResults>"
    )


def iso(seconds):
    return time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(seconds))


class Services(ThreadingHTTPServer):
    def handle_error(self, *_):
        """A client that closes its connection is no news."""


class Stands:
    """Both services, and the commands of the test."""

    def __init__(self):
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self.moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        self.moto.start()
        self.s3_port = self.moto.get_host_and_port()[1]
        self.other = Services(("127.0.0.1", 0), Service)
        threading.Thread(target=self.other.serve_forever, daemon=True).start()
        self.s3 = self.client("s3")
        self.s3.create_bucket(Bucket=BUCKET)
        self.user = self.make_user()

    def client(self, service):
        return boto3.client(
            service,
            endpoint_url=f"http://127.0.0.1:{self.s3_port}",
            region_name="us-east-1",
            aws_access_key_id="setup",
            aws_secret_access_key="setup",
            config=Config(proxies={}),
        )

    def make_user(self):
        iam = self.client("iam")
        iam.create_user(UserName="reader")
        iam.put_user_policy(UserName="reader", PolicyName="read", PolicyDocument=self.policy())
        return iam.create_access_key(UserName="reader")["AccessKey"]

    def policy(self):
        rule = {"Effect": "Allow", "Action": "s3:*", "Resource": "*"}
        return json.dumps({"Version": "2012-10-17", "Statement": [rule]})

    def places(self):
        key = google_key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        other = f"http://127.0.0.1:{self.other.server_address[1]}"
        google = {
            "type": "service_account",
            "private_key": key.decode(),
            "private_key_id": "1",
            "client_email": "reader@example.com",
            "gcs_base_url": other,
        }
        return {
            "s3": f"127.0.0.1:{self.s3_port}",
            "other": other,
            "key_id": self.user["AccessKeyId"],
            "secret_key": self.user["SecretAccessKey"],
            "azure_key": KEY,
            "google": json.dumps(google),
        }

    def sign(self, must):
        """Whether moto asks for signatures from now on."""
        count = "0" if must else OPEN
        requests.post(f"http://127.0.0.1:{self.s3_port}/moto-api/reset-auth", data=count).raise_for_status()

    def put(self, key, content):
        data = base64.b64decode(content)
        self.s3.put_object(Bucket=BUCKET, Key=key, Body=data)
        objects[key] = (data, int(time.time()), hashlib.md5(data).hexdigest())

    def delete(self, key):
        self.s3.delete_object(Bucket=BUCKET, Key=key)
        objects.pop(key, None)

    def lose(self, key):
        lost.add(key)

    def authorization(self, kind):
        wanted["authorization"] = kind

    def role(self):
        """Gives the host a role that may read."""
        iam, trust = self.client("iam"), json.dumps({"Version": "2012-10-17", "Statement": []})
        arn = iam.create_role(RoleName="host", AssumeRolePolicyDocument=trust)["Role"]["Arn"]
        iam.put_role_policy(RoleName="host", PolicyName="read", PolicyDocument=self.policy())
        given = self.client("sts").assume_role(RoleArn=arn, RoleSessionName="host")["Credentials"]
        metadata_role.update(
            AccessKeyId=given["AccessKeyId"],
            SecretAccessKey=given["SecretAccessKey"],
            Token=given["SessionToken"],
            Code="Success",
            Expiration="2099-01-01T00:00:00Z",
        )

    def asked(self):
        since = list(asked)
        asked.clear()
        return since


def main():
    stands = Stands()
    print(json.dumps(stands.places()), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        name = command.pop("do")
        print(json.dumps(getattr(stands, name)(**command)), flush=True)
    os._exit(0)


main()
