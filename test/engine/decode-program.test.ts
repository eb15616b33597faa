import assert from 'node:assert/strict';
import { test } from 'node:test';
import { DecodeBatch, type DecodeSessions } from '../../engine/sample/decode-batch.ts';
import { DecodeProgram } from '../../engine/sample/decode-program.ts';
import { KeyValueCache } from '../../engine/sample/key-value-cache.ts';
import { PromptCache } from '../../engine/sample/prompt-cache.ts';
import { TokenChooser } from '../../engine/sample/token-choice.ts';
import { randomParameters, tinyConfig } from './models.ts';

const versions = Array.from({ length: 5 }, (_, seed) => randomParameters(tinyConfig, seed));
const openProgram = (): Promise<DecodeProgram> => DecodeProgram.open(tinyConfig, { threads: 1, packWeights: true });

test('a version that is wanted again while idle ones are let go can be sampled', async (t) => {
  const program = await openProgram();
  t.after(() => program.release());
  for (const version of [0, 1, 2, 3]) await program.use(version, versions[version]!);
  for (const version of [0, 1, 2, 3]) program.done(version);
  // One lane opens a version, for which the idle ones make room, in the turn in which another takes up version 1.
  const [, again] = await Promise.all([program.use(4, versions[4]!), program.use(1, versions[1]!)]);
  assert.equal((await sampleTwo(again)).length, 2);
});

test('lanes share the sessions of a version, which stays open while any uses it and a while longer', async (t) => {
  const program = await openProgram();
  t.after(() => program.release());
  const [first, second] = await Promise.all([program.use(0, versions[0]!), program.use(0, versions[0]!)]);
  assert.equal(first.step, second.step);
  program.done(0);
  const tokens = await sampleTwo(second);
  program.done(0);
  const again = await program.use(0, versions[0]!);
  assert.equal(again.step, first.step);
  assert.deepEqual(await sampleTwo(again), tokens);
});

test('sessions of a version that is forgotten while it is sampled are closed afterwards, and opened again when it returns', async (t) => {
  const program = await openProgram();
  t.after(() => program.release());
  const sessions = await program.use(0, versions[0]!);
  let isClosed = false;
  const closing = program.forget(0).then(() => (isClosed = true));
  const tokens = await sampleTwo(sessions);
  assert.equal(isClosed, false);
  program.done(0);
  await closing;
  const again = await program.use(0, versions[0]!);
  assert.notEqual(again.step, sessions.step);
  assert.deepEqual(await sampleTwo(again), tokens);
});

/** The tokens of one prefill and one step. */
async function sampleTwo(sessions: DecodeSessions): Promise<number[]> {
  const tokens: number[] = [];
  const batch = new DecodeBatch({
    config: tinyConfig,
    sessions,
    cache: new KeyValueCache(tinyConfig),
    prefillCache: new KeyValueCache(tinyConfig),
    prompts: new PromptCache(2 ** 20),
    limits: { prefillPositionsMax: 1024, rowsMax: 1024 },
    promptPrefix: '',
    isHere: () => true,
    events: { token: (_, { tokenId }) => void tokens.push(tokenId), end: () => undefined },
  });
  const request = { promptTokenIds: [3, 4], maxTokens: 2, temperature: 1, seed: 0, stopTokenIds: [] };
  await batch.prefill([{ id: 0, request, chooser: new TokenChooser(request), sampledCount: 0, isDropped: false }]);
  await batch.step();
  return tokens;
}
