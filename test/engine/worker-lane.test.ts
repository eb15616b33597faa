import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { test, type TestContext } from 'node:test';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import type { Parameters } from '../../engine/model/parameters.ts';
import type { DecodeSessions } from '../../engine/sample/decode-batch.ts';
import type { LaneProgram, NewRow } from '../../engine/sample/decode-lane.ts';
import { DecodeProgram } from '../../engine/sample/decode-program.ts';
import { defaultSamplingLimits } from '../../engine/sample/sampling-limits.ts';
import { WorkerLane } from '../../engine/sample/worker-lane.ts';
import { randomParameters, tinyConfig } from './models.ts';

const options = { ...defaultSamplingLimits, workHereMax: Infinity, keyValueBytesMax: 2 ** 24, promptBytesMax: 2 ** 20 };

test('a worker lane lets go of a version when the last of its rows has ended, and not before', async (t) => {
  const { lane, told, used } = await openLane(t);
  const doneAtEnds: number[] = [];
  told.onEnd = (id) => {
    doneAtEnds.push(used.done.length);
    if (id !== 1) return;
    lane.submit(7, randomParameters(tinyConfig, 1), [rowOf(2, 30)]);
    lane.submit(8, randomParameters(tinyConfig, 2), [rowOf(3, 3)]);
  };
  lane.submit(7, randomParameters(tinyConfig, 1), [rowOf(0, 20), rowOf(1, 4)]);
  await told.ended(0, 1, 2, 3);
  assert.deepEqual(doneAtEnds.slice(0, 2), [0, 0]);
  await until(() => used.done.length === 2);
  assert.deepEqual(used.uses, [7, 8]);
  assert.deepEqual(new Set(used.done), new Set([7, 8]));
  assert.deepEqual(
    [0, 1, 2, 3].map((id) => told.tokens.filter((token) => token === id).length),
    [20, 4, 30, 3],
  );
});

test('rows that are dropped are not told of, and their version is let go once the worker has left it', async (t) => {
  const { lane, told, used } = await openLane(t);
  told.onToken = () => lane.drop([0]);
  lane.submit(1, randomParameters(tinyConfig, 1), [rowOf(0, 1000), rowOf(1, 1000)]);
  lane.drop([1]);
  await until(() => used.done.length === 1);
  assert.deepEqual(used, { uses: [1], done: [1] });
  assert.deepEqual(told.tokens, [0]);
  assert.deepEqual(told.ends, []);
});

test('a version whose sessions cannot be opened, or do not run, fails its rows alone, and is tried again', async (t) => {
  let broken: ((sessions: DecodeSessions) => DecodeSessions) | null = () => {
    throw new Error('no room for it');
  };
  const { lane, told } = await openLane(t, (sessions) => (broken ? broken(sessions) : sessions));
  const parameters = randomParameters(tinyConfig, 1);
  lane.submit(1, parameters, [rowOf(0, 3), rowOf(1, 3)]);
  await until(() => told.failures.length === 1);
  assert.deepEqual(told.failures[0], { ids: [0, 1], message: 'no room for it' });
  broken = (sessions) => ({ ...sessions, weights: { prefill: {}, step: {} } });
  lane.submit(2, parameters, [rowOf(2, 3)]);
  await until(() => told.failures.length === 2);
  assert.deepEqual(told.failures[1]?.ids, [2]);
  assert.match(told.failures[1]?.message ?? '', /ONNX Runtime: .*model\./s);
  broken = null;
  lane.submit(1, parameters, [rowOf(3, 3)]);
  await told.ended(3);
});

test('a sampler with threads that nobody closes does not keep its process', async () => {
  const models = new URL('models.ts', import.meta.url).href;
  const sampler = new URL('../../engine/sample/sampler.ts', import.meta.url).href;
  const program = `
    import { randomParameters, tinyConfig } from '${models}';
    import { Sampler } from '${sampler}';
    const sampler = await Sampler.open(tinyConfig, { threads: 2, rowsPerThreadMin: 1 });
    const rows = [1, 2].map((seed) => ({ promptTokenIds: [seed], maxTokens: 3, temperature: 1, seed, stopTokenIds: [] }));
    const results = await sampler.generate(randomParameters(tinyConfig, 1), rows);
    console.log(results.map(({ tokenIds }) => tokenIds.length).join());
  `;
  const { stdout } = await promisify(execFile)(
    process.execPath,
    ['--import', 'tsx', '--input-type=module', '--eval', program],
    { cwd: fileURLToPath(new URL('../../', import.meta.url)) },
  );
  assert.equal(stdout, '3,3\n');
});

function rowOf(id: number, maxTokens: number): NewRow {
  return { id, request: { promptTokenIds: [1, 2], maxTokens, temperature: 1, seed: id, stopTokenIds: [] } };
}

async function openLane(t: TestContext, give = (sessions: DecodeSessions): DecodeSessions => sessions) {
  const config = { ...tinyConfig, positionsMax: 1024 };
  const own = await DecodeProgram.open(config, { threads: 1 });
  const used = { uses: [] as number[], done: [] as number[] };
  const program: LaneProgram<Parameters> = {
    use: async (version, parameters) => {
      used.uses.push(version);
      return give(await own.use(version, parameters));
    },
    done: (version) => void used.done.push(version),
  };
  const told = {
    tokens: [] as number[],
    ends: [] as number[],
    onToken: () => {},
    onEnd: (() => {}) as (id: number) => void,
    failures: [] as { ids: readonly number[]; message: string }[],
    ended: (...ids: number[]): Promise<void> => until(() => ids.every((id) => told.ends.includes(id))),
  };
  const lane = await WorkerLane.open(config, program, options, {
    token: (id) => {
      told.tokens.push(id);
      told.onToken();
    },
    fail: (ids, error) => void told.failures.push({ ids, message: error instanceof Error ? error.message : '' }),
    stepped: (ends) => {
      for (const { id } of ends) {
        told.ends.push(id);
        told.onEnd(id);
      }
    },
  });
  t.after(async () => {
    await lane.close();
    await own.release();
  });
  return { lane, told, used };
}

async function until(isTrue: () => boolean): Promise<void> {
  for (let i = 0; !isTrue(); i++) {
    assert.ok(i < 30_000, 'it came within a minute');
    await new Promise((resolve) => setTimeout(resolve, 2));
  }
}
