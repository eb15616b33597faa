/** `ratchet doctor` as one types it, on a machine that lacks what a run needs. */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after, describe, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { type Check, checkGpu, checkKeys } from '../../cli/doctor/machine.ts';

const program = fileURLToPath(new URL('../../cli/ratchet.mjs', import.meta.url));
const folder = mkdtempSync(path.join(tmpdir(), 'ratchet-doctor-'));
after(() => rmSync(folder, { recursive: true }));

/** Examines with nothing on PATH: no unshare, no Python, no GPU. `more` are tables of the run file. */
async function examine(
  environment: string,
  more = '',
): Promise<{ code: number; check: (name: string) => Check | undefined }> {
  writeFileSync(path.join(folder, 'env.ts'), environment);
  writeFileSync(
    path.join(folder, 'run.toml'),
    'model = "preset:chars-0.4m"\nbatch_size = 8\nrollouts_per_example = 4\n[sampling]\nmax_tokens = 4\n[[env]]\nid = "./env.ts"\n' +
      more,
  );
  return new Promise((resolve) => {
    const env = { HOME: folder, PATH: folder };
    execFile(
      process.execPath,
      [program, 'doctor', 'run.toml', '--import', '--json'],
      { cwd: folder, env },
      (error, stdout) => {
        const { checks } = JSON.parse(stdout) as { checks: Check[] };
        const check = (name: string): Check | undefined => checks.find((one) => one.name === name);
        resolve({ code: Number(error?.code ?? 0), check });
      },
    );
  });
}

const own = (load: string): string => `
import { listDataset, openPython, rubric, singleTurn } from 'ratchet-rl/environments';
const data = listDataset([{ prompt: 'a', answer: 'A' }]);
export async function loadEnvironment() {
  ${load}
  return singleTurn({ name: 'own', dataset: data, evalDataset: data, rubric: rubric([{ name: 'one', weight: 1, score: () => 1 }]) });
}
`;

test('a login of W&B or of the Hub counts as a key, and is named by its file', (t) => {
  const home = mkdtempSync(path.join(tmpdir(), 'ratchet-logins-'));
  t.after(() => rmSync(home, { recursive: true }));
  assert.match(checkKeys({}, home).says, /absent: .*WANDB_API_KEY, HF_TOKEN/);
  writeFileSync(
    path.join(home, '.netrc'),
    'machine example.com\n  login a\n  password b\nmachine api.wandb.ai login user password secret\n',
  );
  mkdirSync(path.join(home, '.cache/huggingface'), { recursive: true });
  writeFileSync(path.join(home, '.cache/huggingface/token'), 'hf_secret');
  const { says } = checkKeys({}, home);
  assert.equal(
    says.split('; absent')[0],
    `present: WANDB_API_KEY (logged in: ${home}/.netrc), HF_TOKEN (logged in: ${home}/.cache/huggingface/token)`,
  );
  assert.doesNotMatch(says, /secret/);
  assert.match(checkKeys({ WANDB_BASE_URL: 'https://wandb.example.com' }, home).says, /absent: .*WANDB_API_KEY/);
  assert.match(checkKeys({ HF_TOKEN: 'x' }, home).says, /HF_TOKEN; absent/);
});

test('every GPU that the driver names is told', async (t) => {
  const bin = mkdtempSync(path.join(tmpdir(), 'ratchet-gpus-'));
  t.after(() => rmSync(bin, { recursive: true }));
  const before = process.env['PATH'];
  t.after(() => (process.env['PATH'] = before));
  process.env['PATH'] = `${bin}:${before}`;
  const named = async (...lines: string[]): Promise<string> => {
    const text = lines.map((line) => `echo "${line}"`).join('\n');
    writeFileSync(path.join(bin, 'nvidia-smi'), `#!/bin/sh\n${text}\n`, { mode: 0o755 });
    return (await checkGpu({ cuda: false })).find(({ name }) => name === 'GPU')!.says;
  };
  const [one, two] = ['NVIDIA H100 80GB HBM3, 81559 MiB, 550.54', 'NVIDIA A100, 40960 MiB, 550.54'];
  assert.equal(await named(one), one);
  assert.equal(await named(one, two), `0: ${one}; 1: ${two}`);
});

describe('doctor', () => {
  test("a sandbox that is missing matters to a run whose environment, also one of the user's own, asks for it", async () => {
    const { code, check } = await examine(own('await openPython();'));
    assert.deepEqual([code, check('sandbox')?.state, check('environment')?.state], [1, 'bad', 'bad']);
    assert.match(check('environment')!.says, /Python 3\.8 or newer/);
  });

  test('and to others it is something to know of', async () => {
    const { code, check } = await examine(own(''));
    assert.deepEqual([code, check('sandbox')?.state, check('environment')?.state], [0, 'warn', 'ok']);
  });
});

describe('what ratchet doctor says of engines', () => {
  test('a run that starts vLLM needs a Python that has it', async () => {
    const { code, check } = await examine(own(''), '[inference]\nkind = "vllm"\n');
    assert.deepEqual([code, check('vLLM')?.state], [1, 'bad']);
    assert.match(check('vLLM')!.says, /found no Python with vLLM \(looked at /);
  });

  test('a run on the hosted Tinker service needs its key, which is named; the fix of its model asks for no weights', async () => {
    const { code, check } = await examine(own(''), '[trainer]\nkind = "tinker"\n[inference]\nkind = "tinker"\n');
    assert.deepEqual([code, check('Tinker server')?.state], [1, 'bad']);
    assert.match(check('Tinker server')!.says, /TINKER_API_KEY, which is not set here/);
  });
});
