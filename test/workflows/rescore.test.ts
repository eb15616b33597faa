/** A rescore: opened, chunk after chunk, closed; and what its judges may cost. */
import assert from 'node:assert/strict';
import { after, describe, test } from 'node:test';
import type { RescoreInput, RescoreResult, RescoreStatus } from '../../core/eval/rescore.ts';
import { RatchetError } from '../../core/errors.ts';
import { rescoredChunk, rescoreOf } from './fake-evaluation.ts';
import { type Fakes, Gate } from './fake-run.ts';
import { ascending, failureOf } from './look.ts';
import { begin, type BegunRun, closeServer } from './server.ts';

after(closeServer);

const rescore = (fakes: Fakes = {}, of: Partial<RescoreInput> = {}): Promise<BegunRun> =>
  begin({ type: 'rescore', args: [rescoreOf('words', of)], fakes });
const resultOf = async (run: BegunRun) => (await run.handle.result()) as RescoreResult;
const statusOf = (run: BegunRun) => run.handle.query<RescoreStatus>('status');

describe('a rescore', { concurrency: 8 }, () => {
  test('is opened, scored chunk by chunk, and closed with what its judges cost', async () => {
    const run = await rescore();
    const { judge } = await resultOf(run);
    assert.deepEqual(judge, { calls: 6, tokens: 60 });
    assert.deepEqual(ascending(run.inputs('rescoreChunk').map(({ chunk }) => chunk)), [0, 1, 2]);
    assert.ok(run.inputs('rescoreChunk').every(({ allowed }) => allowed === undefined));
    const { phase, rollouts, chunks } = await statusOf(run);
    assert.deepEqual([phase, rollouts, chunks], ['finished', { done: 12, changed: 3, failed: 0 }, { done: 3, of: 3 }]);
  });

  test('says which chunks it waits for', async () => {
    const gate = new Gate();
    const run = await rescore({
      rescoreChunk: async ({ chunk }) => {
        await gate.pass();
        return rescoredChunk(chunk);
      },
    });
    await gate.reached;
    assert.deepEqual((await statusOf(run)).waitingOn, ['chunk 1 of 3', 'chunk 2 of 3', 'chunk 3 of 3']);
    gate.open();
    await resultOf(run);
  });

  test('is refused where its rubric cannot score what is stored, and nothing is scored', async () => {
    const run = await rescore({
      openRescore: () => {
        throw new RatchetError('Unsupported', 'words scores in place');
      },
    });
    assert.match(await failureOf(run.handle.result()), /^Unsupported: words scores in place/);
    assert.deepEqual(run.inputs('rescoreChunk'), []);
  });

  test('never allows its chunks more judge calls together than its limit, and ends when they are spent', async () => {
    const allowed = new Map<number, number>();
    const run = await rescore(
      {
        rescoreChunk: ({ chunk, allowed: { calls = 0 } = {} }) => {
          allowed.set(chunk, calls);
          return rescoredChunk(chunk, { isOver: true, use: { calls, tokens: 0 } });
        },
      },
      { limit: { calls: 5 } },
    );
    assert.match(await failureOf(run.handle.result()), /The limit of 5 judge calls is reached \(5 calls, 0 tokens\)/);
    assert.equal(
      [...allowed.values()].reduce((sum, one) => sum + one, 0),
      5,
    );
    assert.deepEqual(run.inputs('closeRescore'), []);
  });

  test('gives what a chunk leaves to those that need more', async () => {
    const run = await rescore(
      {
        rescoreChunk: ({ chunk, allowed: { calls = 0 } = {} }) => {
          const needed = chunk === 0 ? 1 : 4;
          const use = { calls: Math.min(calls, needed), tokens: 0 };
          return rescoredChunk(chunk, { use, isOver: calls < needed });
        },
      },
      { limit: { calls: 9 } },
    );
    assert.deepEqual((await resultOf(run)).judge, { calls: 9, tokens: 0 });
  });

  test('a wrong input is refused before anything is opened', async () => {
    const run = await begin({ type: 'rescore', args: [{ subject: { kind: 'walk' } }] });
    assert.match(await failureOf(run.handle.result()), /The input of rescore is wrong; nothing was started/);
  });
});
