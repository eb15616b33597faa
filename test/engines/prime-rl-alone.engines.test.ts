/** prime-rl's own trainers, without Ratchet: they still do what `test/data/prime-rl-trainer` says of them. `npm run test:engines` */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { readFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { temporaryFolder, writePreset } from '../../backends/testing/material.ts';
import { type PrimeRl, primeRl, startForks } from './prime-rl/installations.ts';

interface Case {
  readonly version: string;
  readonly part: 'full' | 'lora';
  readonly ranks: number;
  readonly files: readonly string[];
  readonly tensors: unknown;
  readonly adapter?: unknown;
  readonly metrics: readonly Readonly<Record<string, number>>[];
  readonly lines: readonly string[];
  readonly resumed: {
    readonly weights: readonly string[];
    readonly entries: number;
    readonly differ: readonly string[];
  };
}

const data = fileURLToPath(new URL('../data/prime-rl-trainer/', import.meta.url));
const read = (name: string): unknown => JSON.parse(readFileSync(path.join(data, name), 'utf8'));

const run = promisify(execFile);
const outputMax = 64 * 1024 * 1024;

for (const version of ['head', 'v0.4.0']) {
  const found = primeRl(version);
  const skip = 'missing' in found ? found.missing : false;

  test(
    `prime-rl ${version} leaves the files of a step that are recorded, and continues to the same bits`,
    { skip },
    async (t) => {
      const model = await writePreset(path.join(await temporaryFolder(t), 'model'));
      const forks = await startForks(found as PrimeRl);
      t.after(() => forks.close());
      const { checkout, python } = found as PrimeRl;
      const script = path.join(data, 'record_steps.py');
      const { stdout } = await run(python, [script, model, `${version}=${checkout}:${forks.python}`], {
        maxBuffer: outputMax,
      });
      const cases = JSON.parse(stdout) as Case[];
      const recorded = (read('steps.json') as Case[]).filter((one) => one.version === version);
      assert.deepEqual(cases.map(formOf), recorded.map(formOf));
      for (const { part, ranks, resumed } of cases) {
        assert.deepEqual(resumed.weights, [], `${part} on ${ranks}: weights of the resumed trainer`);
        const trained = resumed.differ.filter((name) => !name.includes('progress.'));
        assert.deepEqual(trained, [], `${part} on ${ranks}: weights, moments and schedule in the checkpoint`);
        assert.ok(resumed.entries > 20, `${resumed.entries} entries`);
      }
    },
  );
}

const both = [primeRl('head'), primeRl('v0.4.0')].flatMap((found) => ('missing' in found ? [] : [found]));

test(
  'prime-rl encodes samples as it is recorded',
  { skip: both.length === 2 ? false : 'RATCHET_PRIME_RL names not both' },
  async () => {
    const args = both.map(({ name, checkout }) => `${name}=${checkout}`);
    const { stdout } = await run(both[0]!.python, [path.join(data, 'record_wire.py'), ...args], {
      maxBuffer: outputMax,
    });
    assert.deepEqual(JSON.parse(stdout), read('wire.json'));
  },
);

/** Without numbers: they depend on the machine, and times on its load. */
function formOf({ version, part, ranks, files, tensors, adapter, metrics, lines }: Case) {
  return {
    version,
    part,
    ranks,
    files,
    tensors,
    adapter,
    metrics: metrics.map((row) => [row['step'], Object.keys(row)]),
    lines: lines.map((line) => line.replaceAll(/[-\d.]+(?:e[-+]\d+)?(?:ms|s)?/g, '#').replaceAll(/\s+/g, ' ')),
  };
}
