"""Records what prime-rl's own config code makes of its own run files.

    python record.py PRIME_RL VERIFIERS PYTHON | gzip -9 > home.jsonl.gz

PRIME_RL and VERIFIERS are git repositories with their history, PYTHON is an interpreter with what config code imports (README.md names
the packages). Every TOML file of prime-rl's main branch is asked once for each of its contents, with the code of the first commit that
has it; what lies in the trees of v0.4.0 and HEAD also with their code. Files that start no training (inference, evaluations) are left out.
"""

import io
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from collections import defaultdict
from pathlib import Path

prime_rl, verifiers, python = sys.argv[1:4]
releases = {"v0.4.0": "prime-rl-0.4", "HEAD": "prime-rl"}
here = Path(__file__).parent
scratch = Path(tempfile.mkdtemp(prefix="prime-rl-home-"))
folders = ["src", "packages", "configs", "examples", "k8s", "open_diloco"]


def git(repository, *words, binary=False):
    made = subprocess.run(["git", "-C", repository, *words], capture_output=True, check=True).stdout
    return made if binary else made.decode(errors="replace")


def is_run_file(path):
    return path.endswith(".toml") and not path.endswith("pyproject.toml") and path.split("/")[0] in ("configs", "examples", "k8s")


def versions():
    """By commit, in order: the files whose content it is the first to have."""
    seen, found = set(), defaultdict(list)
    log = git(prime_rl, "log", "--reverse", "--full-history", "-m", "--format=@%H %cI", "--raw", "--no-abbrev", "HEAD", "--", "*.toml")
    for line in log.splitlines():
        if line.startswith("@"):
            commit, dates[line[1:41]] = line[1:41], line[42:]
        elif line.startswith(":"):
            blob, path = line.split()[3], line.split("\t")[-1]
            if set(blob) == {"0"} or not is_run_file(path) or blob in seen:
                continue
            seen.add(blob)
            found[commit].append(path)
    return found


def unpacked(repository, commit, paths, name):
    folder = scratch / name
    if folder.exists():
        return folder
    present = set(git(repository, "ls-tree", "--name-only", commit).split())
    archive = git(repository, "archive", commit, *[path for path in paths if path in present], binary=True)
    folder.mkdir()
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        wanted = [one for one in files.getmembers() if one.isfile() and one.size < 300_000]
        files.extractall(folder, members=wanted, filter="data")
    return folder


def verifiers_of(commit, date):
    """The folders of verifiers that this commit names: its submodule, or the revision in pyproject.toml."""
    pin = git(prime_rl, "ls-tree", commit, "deps/verifiers").split()
    named = re.search(r'verifiers\.git", rev = "(\w+)"', git(prime_rl, "show", f"{commit}:pyproject.toml"))
    revision = pin[2] if len(pin) > 2 else named and named[1]
    nearest = git(verifiers, "rev-list", "-1", f"--before={date}", "HEAD").strip()
    for known in filter(None, [revision, nearest]):  # a branch that named it may be gone
        try:
            root = unpacked(verifiers, known, ["verifiers", "environments"], f"verifiers-{known[:9]}")
            break
        except subprocess.CalledProcessError:
            continue
    else:
        return []
    return [root, *sorted((root / "environments").glob("*"))] if (root / "environments").exists() else [root]


workers, dates = {}, {}


def worker_of(folders):
    """A process that has imported this verifiers; one is kept."""
    key = tuple(map(str, folders))
    if key not in workers:
        for other in workers.values():
            other.stdin.close()
        workers.clear()
        workers[key] = subprocess.Popen([python, str(here / "home.py"), *key], stdin=-1, stdout=-1, stderr=-3, text=True)
    return workers[key]


def asked(commit, paths):
    date = dates.get(commit) or git(prime_rl, "log", "-1", "--format=%cI", commit).strip()
    root = unpacked(prime_rl, commit, folders, commit[:9])
    names = [path for path in paths if (root / path).exists()]
    worker = worker_of(verifiers_of(commit, date))
    worker.stdin.write(json.dumps({"root": str(root), "files": names}) + "\n")
    worker.stdin.flush()
    answers = [json.loads(line) for line in iter(worker.stdout.readline, "\n")]
    if len(answers) < len(names):
        print(f"{commit[:9]}: {len(answers)} answers for {len(names)} files", file=sys.stderr)
    for answer in answers:
        if answer["entry"] in ("inference", "eval"):
            continue
        text = (root / answer["path"]).read_text()
        yield {"commit": commit[:12], "date": date[:10], **answer, "text": text}
    subprocess.run(["rm", "-rf", str(root)])


def main():
    only = os.environ.get("ONLY", "releases history").split()
    if "releases" in only:
        for release in releases:
            commit = git(prime_rl, "rev-parse", f"{release}^{{commit}}").strip()
            paths = [path for path in git(prime_rl, "ls-tree", "-r", "--name-only", commit).split("\n") if is_run_file(path)]
            for answer in asked(commit, paths):
                print(json.dumps({"release": release, **answer}), flush=True)
    if "history" in only:
        found = versions()
        chosen = os.environ.get("COMMITS", "").split()
        for i, (commit, paths) in enumerate(reversed(found.items())):
            if chosen and commit[:12] not in chosen:
                continue
            print(f"{i + 1}/{len(found)} {commit[:9]} {len(paths)}", file=sys.stderr)
            try:
                for answer in asked(commit, paths):
                    print(json.dumps(answer), flush=True)
            except subprocess.CalledProcessError as error:
                print(f"{commit[:9]}: not read: {error}", file=sys.stderr)


main()
