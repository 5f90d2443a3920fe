"""Fetching corpora: what is checked, what is refused, and how an interrupted fetch goes on."""

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import threading
import tomllib
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
MAIL = b"From: a@b.example\n\nhello\n" * 2000


def tar_of(members, mode="w:gz"):
    """Pack (name, content) pairs; a content that is a str is where a symbolic link points."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode=mode) as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            if isinstance(content, str):
                info.type, info.linkname = tarfile.SYMTYPE, content
                tar.addfile(info)
            else:
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return packed.getvalue()


def zip_of(members):
    """Pack (name, content) pairs as a zip archive."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as zipped:
        for name, content in members:
            zipped.writestr(name, content)
    return packed.getvalue()


class Site:
    """A web site on the loopback: files by path, and what was asked for."""

    def __init__(self):
        self.files, self.asked, self.cut = {}, [], {}
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                site.answer(self)

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.root = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def answer(self, handler):
        data = self.files.get(handler.path)
        wanted = handler.headers.get("Range")
        self.asked.append((handler.path, wanted))
        if data is None:
            handler.send_error(404)
            return
        tag = f'"{hashlib.sha256(data).hexdigest()[:8]}"'
        start = 0
        if wanted and handler.headers.get("If-Range") == tag:
            start = int(wanted.removeprefix("bytes=").rstrip("-"))
        handler.send_response(206 if start else 200)
        handler.send_header("ETag", tag)
        handler.send_header("Content-Length", str(len(data) - start))
        handler.end_headers()
        end = self.cut.pop(handler.path, len(data))
        handler.wfile.write(data[start:end])


@pytest.fixture
def site():
    site = Site()
    yield site
    site.server.shutdown()
    site.server.server_close()


@pytest.fixture
def call(tmp_path, site):
    """Fetch the set `made` from a table of sources with these files; gives the ended process."""

    def call(*files, arguments=("made",), extra=""):
        lines = ['[made]\nabout = "made up"\nterms = "none"', extra]
        for file in files:
            lines.append("[[made.file]]")
            lines += [f"{key} = {json.dumps(value)}" for key, value in file.items()]
        table = tmp_path / "sources.toml"
        table.write_text("\n".join(lines))
        script = PROJECT / "scripts" / "fetch-corpora"
        command = [sys.executable, script, *arguments, "--to", tmp_path / "to", "--sources", table]
        direct = {**os.environ, "no_proxy": "127.0.0.1"}
        return subprocess.run(command, capture_output=True, text=True, check=False, env=direct)

    return call


@pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed")
def test_a_package_of_npm_is_fetched_and_checked(tmp_path, call):
    """A package is packed by npm; one with another hash is refused and removed."""
    package = tmp_path / "some-mail"
    (package / "ham-1").mkdir(parents=True)
    (package / "ham-1" / "1.txt").write_bytes(MAIL)
    about = {"name": "some-mail", "version": "1.2.3"}
    (package / "package.json").write_text(json.dumps(about))
    done = call({"npm": str(package), "sha256": "0" * 64})
    assert (done.returncode, "must be 000" in done.stderr) == (1, True), done.stderr
    done = call({"npm": str(package)})
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "to/made/package/ham-1/1.txt").read_bytes() == MAIL


def held(tmp_path):
    """Read what the set holds, by name."""
    folder = tmp_path / "to" / "made"
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("set.tar.gz", tar_of([("x/ham/1", MAIL), ("x/spam/1", b"s")])),
        ("set.tar.bz2", tar_of([("x/ham/1", MAIL), ("x/spam/1", b"s")], "w:bz2")),
        ("set.zip", zip_of([("x/ham/1", MAIL), ("x/spam/1", b"s")])),
    ],
)
def test_a_good_archive_is_unpacked(tmp_path, site, call, name, data):
    """Each kind of archive, with its published hash, ends up as files and exit code 0."""
    site.files[f"/{name}"] = data
    done = call({"urls": [f"{site.root}/{name}"], "sha256": hashlib.sha256(data).hexdigest()})
    assert (done.returncode, done.stderr) == (0, "")
    assert held(tmp_path) == {"x/ham/1": MAIL, "x/spam/1": b"s"}


def test_a_file_that_is_no_archive_is_kept_as_it_is(tmp_path, site, call):
    """An mbox is put into the folder that the table names."""
    site.files["/old.mbox"] = MAIL
    assert call({"urls": [f"{site.root}/old.mbox"], "into": "spam"}).returncode == 0
    assert held(tmp_path) == {"spam/made-old.mbox": MAIL}


@pytest.mark.parametrize("kind", ["sha256", "md5"])
def test_a_wrong_hash_is_refused(tmp_path, site, call, kind):
    """Nothing is unpacked and the wrong file is removed, so the next call gets it again."""
    site.files["/set.tar.gz"] = tar_of([("ham/1", MAIL)])
    done = call({"urls": [f"{site.root}/set.tar.gz"], kind: "00"})
    assert done.returncode == 1
    assert f"{kind} is " in done.stderr
    assert "must be 00" in done.stderr
    assert not held(tmp_path)
    assert not list((tmp_path / "to").rglob("*.tar.gz"))


def test_an_unknown_hash_is_trusted_once(tmp_path, site, call):
    """The first file's hash is printed and recorded; another file there is refused later."""
    url = f"{site.root}/set.tar.gz"
    site.files["/set.tar.gz"] = first = tar_of([("ham/1", MAIL)])
    done = call({"urls": [url]})
    sha256 = hashlib.sha256(first).hexdigest()
    assert f"sha256 {sha256}, recorded" in done.stdout
    assert json.loads((tmp_path / "to" / "fetched.json").read_text()) == {url: sha256}
    for path in sorted((tmp_path / "to").rglob("*"), reverse=True):
        if path.name != "fetched.json":
            path.rmdir() if path.is_dir() else path.unlink()
    site.files["/set.tar.gz"] = tar_of([("ham/1", b"another")])
    done = call({"urls": [url]})
    assert done.returncode == 1
    assert sha256 in done.stderr
    assert not held(tmp_path)


@pytest.mark.parametrize("name", ["../out", "x/../../out", "/tmp/out", "C:/out", "..\\out"])
@pytest.mark.parametrize("pack", [tar_of, zip_of])
def test_paths_that_leave_the_folder_are_refused(tmp_path, site, call, name, pack):
    """One such path and nothing of the archive is kept, inside or outside."""
    site.files["/bad"] = pack([("ham/1", MAIL), (name, b"evil")])
    done = call({"urls": [f"{site.root}/bad"]})
    assert done.returncode == 1
    assert "leaves its folder" in done.stderr
    assert not held(tmp_path)
    assert not list(tmp_path.rglob("out"))
    assert not Path("/tmp/out").exists()


def test_links_are_not_made(tmp_path, site, call):
    """A link that points outside is left out, and so a file below it stays inside."""
    outside = tmp_path / "outside"
    outside.mkdir()
    members = [("ham/1", MAIL), ("way", str(outside)), ("way/2", b"through the link")]
    site.files["/set.tar.gz"] = tar_of(members)
    done = call({"urls": [f"{site.root}/set.tar.gz"]})
    assert done.returncode == 0
    assert "1 links left out" in done.stdout
    assert held(tmp_path) == {"ham/1": MAIL, "way/2": b"through the link"}
    assert not list(outside.iterdir())
    assert not any(path.is_symlink() for path in (tmp_path / "to").rglob("*"))


def test_a_missing_file_is_reported(tmp_path, site, call):
    """The server's answer and the address stand in one line, and no set appears."""
    done = call({"urls": [f"{site.root}/gone.tgz"]})
    assert done.returncode == 1
    assert f"{site.root}/gone.tgz: the server says 404" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "to" / "made").exists()


def test_the_second_address_is_tried(tmp_path, site, call):
    """If the first address fails the next one serves."""
    site.files["/set.tar.gz"] = tar_of([("ham/1", MAIL)])
    done = call({"urls": [f"{site.root}/gone", f"{site.root}/set.tar.gz"]})
    assert done.returncode == 0
    assert held(tmp_path) == {"ham/1": MAIL}


def test_an_interrupted_download_goes_on(tmp_path, site, call):
    """What was got is kept, the rest is asked for, and the hash holds over both."""
    site.files["/set.tar.gz"] = data = tar_of([("ham/1", bytes(range(256)) * 4000)], "w")
    site.cut["/set.tar.gz"] = 300_000
    file = {"urls": [f"{site.root}/set.tar.gz"], "sha256": hashlib.sha256(data).hexdigest()}
    done = call(file)
    assert done.returncode == 1
    assert f"ended after 300000 of {len(data)} bytes; run again" in done.stderr
    assert call(file).returncode == 0
    assert site.asked == [("/set.tar.gz", None), ("/set.tar.gz", "bytes=300000-")]
    assert held(tmp_path) == {"ham/1": bytes(range(256)) * 4000}


def test_a_file_that_changed_in_between_starts_over(tmp_path, site, call):
    """Halves of two different files are never put together."""
    url = f"{site.root}/set.tar.gz"
    site.files["/set.tar.gz"] = tar_of([("ham/1", bytes(400_000))], "w")
    site.cut["/set.tar.gz"] = 300_000
    assert call({"urls": [url]}).returncode == 1
    site.files["/set.tar.gz"] = tar_of([("ham/1", b"n" * 400_000)], "w")
    assert call({"urls": [url]}).returncode == 0
    assert held(tmp_path) == {"ham/1": b"n" * 400_000}


def test_a_set_that_is_there_is_not_fetched_again(site, call):
    """The second call sends no request to the server."""
    site.files["/set.tar.gz"] = tar_of([("ham/1", MAIL)])
    assert call({"urls": [f"{site.root}/set.tar.gz"]}).returncode == 0
    asked = len(site.asked)
    assert call({"urls": [f"{site.root}/set.tar.gz"]}).returncode == 0
    assert len(site.asked) == asked


def test_a_damaged_archive_is_reported(tmp_path, site, call):
    """A gzip file that ends in its middle is one line, no half set."""
    site.files["/set.tar.gz"] = tar_of([("ham/1", MAIL), ("ham/2", MAIL[::-1])])[:-40]
    done = call({"urls": [f"{site.root}/set.tar.gz"]})
    assert done.returncode == 1
    assert "cannot be unpacked" in done.stderr
    assert not held(tmp_path)


def test_an_agreement_comes_first(site, call):
    """A set under an agreement is not fetched before one says that one agrees."""
    site.files["/set.tar.gz"] = tar_of([("ham/1", MAIL)])
    file, extra = {"urls": [f"{site.root}/set.tar.gz"]}, 'agreement = "https://terms.example"'
    done = call(file, extra=extra)
    assert done.returncode == 1
    assert "https://terms.example" in done.stderr
    assert not site.asked
    assert call(file, arguments=("made", "--agreed"), extra=extra).returncode == 0


@pytest.mark.parametrize(
    ("file", "error"),
    [("file:///etc/hostname", "only http and https"), ("http://127.0.0.1:9/x", "run again")],
)
def test_other_addresses_are_refused(call, file, error):
    """Neither local files nor a server that does not answer end in a traceback."""
    done = call({"urls": [file]})
    assert done.returncode == 1
    assert error in done.stderr
    assert "Traceback" not in done.stderr


def test_unknown_names_and_sets_by_hand(call):
    """A name that is not in the table is a wrong call; a set by hand says how."""
    assert call(arguments=("other",)).returncode == 2
    done = call(extra='by_hand = "ask its makers"')
    assert (done.returncode, done.stderr) == (1, "made: ask its makers\n")


def test_the_table_and_its_description_name_the_same_sets():
    """Every set that can be fetched is described in corpora/README.md, and is listed."""
    sources = tomllib.loads((PROJECT / "corpora" / "sources.toml").read_text("utf-8"))
    described = (PROJECT / "corpora" / "README.md").read_text("utf-8")
    command = [sys.executable, PROJECT / "scripts" / "fetch-corpora", "--list"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for name, source in sources.items():
        assert f"`{name}`" in described
        assert name in listed
        assert ("file" in source) != ("by_hand" in source)
