import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { text } from 'node:stream/consumers';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { linearLoss } from '../../backends/tinker/batch.ts';
import { TinkerClient } from '../../backends/tinker/index.ts';
import { startTinkerStandIn } from '../stand-ins/tinker/server.ts';
import { ensureEngine } from './install.ts';

/** The hosted service's own client and ours, at the stand-in of the service: `npm run test:engines`. */

const found = await ensureEngine({
  name: 'tinker-0.38.0',
  variable: 'RATCHET_TINKER_PYTHON',
  packages: ['tinker==0.38.0', 'numpy'],
  diskBytes: 1e9,
  memoryBytes: 1e9,
});
const skip = 'missing' in found ? `no tinker package here: ${found.missing}` : false;
if (skip) process.stderr.write(`skipped: ${skip}\n`);

const model = 'preset:reverse-text-0.2m';
const key = 'tml-of-the-hosted-service';
const rows = [
  { tokens: [5, 6, 7, 8], weights: [0, 1, 1] },
  { tokens: [3, 4, 5], weights: [0.5, -0.25] },
];

test('the Python package trains at the stand-in, and to the same numbers as we do', { skip }, async (t) => {
  assert('python' in found);
  const folder = await mkdtemp(path.join(os.tmpdir(), 'ratchet-tinker-package-'));
  t.after(() => rm(folder, { recursive: true, force: true }));
  const server = await startTinkerStandIn({ folder, model, hostedKey: key, heedsOptimizer: true });
  t.after(() => server.close());
  const theirs = await trainWithThePackage(found.python, server.url);

  process.env['RATCHET_TEST_TINKER_KEY'] = key;
  const client = new TinkerClient({ url: server.url, apiKeyVar: 'RATCHET_TEST_TINKER_KEY', server: 'tinker' });
  t.after(() => client.close());
  const ours = await client.createModel({ baseModel: model, rank: 4, seed: 3 });
  const data = rows.map(({ tokens, weights }) => ({
    tokens: tokens.slice(0, -1),
    inputs: {
      target_tokens: { dtype: 'int64' as const, data: tokens.slice(1) },
      weights: { dtype: 'float32' as const, data: weights },
    },
  }));
  assert.deepEqual((await ours.forward(data)).logprobs, theirs.before);
  for (let step = 0; step < 3; step++) {
    await ours.forwardBackward(data, linearLoss('weights'));
    await ours.optimStep({
      learning_rate: 1e-2,
      beta1: 0.9,
      beta2: 0.95,
      eps: 1e-8,
      weight_decay: 0,
      grad_clip_norm: 0,
    });
  }
  assert.deepEqual((await ours.forward(data)).logprobs, theirs.after);
  assert.notDeepEqual(theirs.after, theirs.before);
  assert.match(theirs.path, /^tinker:\/\/model_\w+\/sampler_weights\/package$/);
});

interface Trained {
  readonly before: number[][];
  readonly after: number[][];
  readonly path: string;
}

async function trainWithThePackage(python: string, url: string): Promise<Trained> {
  const program = fileURLToPath(new URL('../data/tinker/train-with-the-package.py', import.meta.url));
  const env = { ...process.env, TINKER_API_KEY: key, TINKER_TELEMETRY: '0' };
  const child = spawn(python, [program, url, model], { env, stdio: ['pipe', 'pipe', 'pipe'] });
  child.stdin.end(JSON.stringify(rows));
  const [said, failed] = await Promise.all([text(child.stdout), text(child.stderr), once(child, 'close')]);
  assert.equal(child.exitCode, 0, failed.slice(-3_000));
  return JSON.parse(said) as Trained;
}
