"""Copies objects of an S3 bucket into a folder: the program of the job that `commonage data import` submits.

Its text is sent as `python3 -c TEXT SOURCE VARIABLE [PATH]`; the variable has the path of the home or volume. So it
uses the standard library only and needs no package in the image. Access keys are secrets of the job; without them the
bucket must be public. Objects that are there with the same size are not copied again, so a job that was interrupted
continues when it is repeated.
"""

import errno
import hashlib
import hmac
import os
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
import xml.etree.ElementTree as Xml

EMPTY = hashlib.sha256(b"").hexdigest()
CHUNK_BYTES = 1024 * 1024
TRIES = 5


def sign(key: bytes, text: str) -> bytes:
    return hmac.new(key, text.encode(), hashlib.sha256).digest()


class Bucket:
    def __init__(self, name: str) -> None:
        self.region = os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
        endpoint = os.environ.get("AWS_ENDPOINT_URL") or f"https://s3.{self.region}.amazonaws.com"
        self.url = urllib.parse.urlsplit(endpoint.rstrip("/"))
        self.path = f"{self.url.path}/{quote(name)}"

    def request(self, path: str, query: dict[str, str], headers: dict[str, str]) -> urllib.request.Request:
        """A GET request, signed with AWS's version 4 if there are keys."""
        target = self.path + path
        text = "&".join(f"{quote(name, '')}={quote(value, '')}" for name, value in sorted(query.items()))
        headers = {"host": self.url.netloc, **headers, **self.signature(target, text)}
        return urllib.request.Request(f"{self.url.scheme}://{self.url.netloc}{target}?{text}", headers=headers)  # noqa: S310 (its user's own job and address)

    def signature(self, path: str, query: str) -> dict[str, str]:
        key, secret = os.environ.get("AWS_ACCESS_KEY_ID"), os.environ.get("AWS_SECRET_ACCESS_KEY")
        if not key or not secret:
            return {}
        now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        signed = {"host": self.url.netloc, "x-amz-content-sha256": EMPTY, "x-amz-date": now}
        if os.environ.get("AWS_SESSION_TOKEN"):
            signed["x-amz-security-token"] = os.environ["AWS_SESSION_TOKEN"]
        names = ";".join(sorted(signed))
        lines = "".join(f"{name}:{signed[name]}\n" for name in sorted(signed))
        canonical = "\n".join(["GET", path, query, lines, names, EMPTY])
        scope = f"{now[:8]}/{self.region}/s3/aws4_request"
        digest = hashlib.sha256(canonical.encode()).hexdigest()
        day = sign(b"AWS4" + secret.encode(), now[:8])
        signing = sign(sign(sign(day, self.region), "s3"), "aws4_request")
        proof = sign(signing, f"AWS4-HMAC-SHA256\n{now}\n{scope}\n{digest}").hex()
        authorization = f"AWS4-HMAC-SHA256 Credential={key}/{scope}, SignedHeaders={names}, Signature={proof}"
        return {**{name: value for name, value in signed.items() if name != "host"}, "authorization": authorization}

    def objects(self, prefix: str) -> list[tuple[str, int]]:
        """Name and size of each object whose name begins with the prefix."""
        found, query = [], {"list-type": "2", "prefix": prefix}
        while True:
            with urllib.request.urlopen(self.request("", query, {}), timeout=60) as answer:  # noqa: S310 (as above)
                page = Xml.fromstring(answer.read())  # noqa: S314 (a hostile server harms this job only)
            space = page.tag.partition("}")[0] + "}" if "}" in page.tag else ""
            for one in page.findall(f"{space}Contents"):
                found.append((one.findtext(f"{space}Key") or "", int(one.findtext(f"{space}Size") or 0)))
            token = page.findtext(f"{space}NextContinuationToken")
            if not token:
                return found
            query["continuation-token"] = token

    def copy(self, name: str, size: int, target: str) -> None:
        """Copy to a temporary file next to the target, continuing after a failure, then rename it."""
        part = f"{target}.part"
        for attempt in range(1, TRIES + 1):
            at = os.path.getsize(part) if os.path.exists(part) else 0
            if at > size:
                os.unlink(part)
                at = 0
            try:
                headers = {"range": f"bytes={at}-"} if at else {}
                if at < size or not size:
                    request = self.request(f"/{quote(name)}", {}, headers)
                    with (
                        urllib.request.urlopen(request, timeout=60) as answer,  # noqa: S310 (as above)
                        open(part, "ab" if at else "wb") as file,
                    ):
                        while chunk := answer.read(CHUNK_BYTES):
                            file.write(chunk)
                if os.path.getsize(part) == size:
                    os.replace(part, target)
                    return
                problem = f"{os.path.getsize(part)} of {size} bytes were received"
            except urllib.error.HTTPError as error:
                if error.code < 500:
                    raise
                problem = str(error)
            except OSError as error:
                if error.errno in (errno.ENOSPC, errno.EDQUOT):
                    raise
                problem = str(error)
            print(f"{name}: {problem}; try {attempt} of {TRIES}", flush=True)
            time.sleep(attempt)
        sys.exit(f"{name} could not be copied; submit the import again to continue it")


def quote(text: str, safe: str = "/") -> str:
    return urllib.parse.quote(text, safe=safe + "-_.~")


def file_of(name: str, prefix: str, folder: str) -> str:
    """The path of the file for an object. Ends the program for a name that leads out of the folder."""
    below = name[len(prefix) :].lstrip("/") if name != prefix else name.rpartition("/")[2]
    parts = below.split("/")
    if any(part in ("", ".", "..") or "\0" in part for part in parts):
        sys.exit(f"the object {name!r} has a name that a file cannot have; import another prefix")
    return os.path.join(folder, *parts)


def main() -> None:
    source, folder = sys.argv[1], os.path.join(os.environ[sys.argv[2]], *sys.argv[3:])
    name, _, prefix = source.removeprefix("s3://").partition("/")
    bucket = Bucket(name)
    try:
        objects = [one for one in bucket.objects(prefix) if not one[0].endswith("/")]
        if not objects:
            sys.exit(f"there is nothing at {source}; check the name of the bucket and the prefix")
        total, done, skipped = sum(size for _, size in objects), 0, 0
        print(f"{len(objects)} objects, {total / 2**20:.1f} MiB", flush=True)
        for number, (key, size) in enumerate(objects, 1):
            target = file_of(key, prefix, folder)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            if os.path.isfile(target) and os.path.getsize(target) == size:
                skipped += 1
            else:
                bucket.copy(key, size, target)
            done += size
            share = done / total if total else 1
            print(f"{number}/{len(objects)} {share:.0%} {key}", flush=True)
        print(f"Done: {len(objects) - skipped} copied, {skipped} skipped because they exist.", flush=True)
    except urllib.error.HTTPError as error:
        why = {403: "the keys are missing or may not read it", 404: "it does not exist"}.get(error.code, error.reason)
        sys.exit(f"{source} cannot be read: HTTP {error.code}, {why}")
    except OSError as error:
        sys.exit(f"{source} cannot be copied: {error}")


if __name__ == "__main__":
    main()
