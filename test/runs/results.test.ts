/** Rollouts as verifiers writes them, beside what training reads: of a round, of a batch, of a fork's groups. */
import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { describe, test, type TestContext } from 'node:test';
import { layout } from '../../runs/layout.ts';
import { partName } from '../../core/rl/sampling/chunks.ts';
import type { SamplingRound } from '../../core/rl/run-state.ts';
import type { ScoredGroup } from '../../core/rl/rollout/rollout.ts';
import { runEvaluations } from '../../runs/evaluations/run-evaluations.ts';
import { decodeJson, decodeRows, unpacked } from '../../store/objects.ts';
import type { Store } from '../../store/index.ts';
import { act, commitFirst, datasets, makeRun, openRoles, planNext, WordsInference } from '../activities/runs.ts';

type Row = Readonly<Record<string, unknown>> & { readonly ratchet: { readonly group: number } };

async function readResults(store: Store, prefix: string) {
  const { evaluations } = await runEvaluations(store, ['main'], { training: true });
  const found = evaluations.find(({ where }) => where === store.uri + prefix)!;
  return {
    rows: decodeRows<Row>(await readFile(await found.rows()), 'results.jsonl'),
    metadata: decodeJson<Record<string, unknown>>((await store.read(`${prefix}metadata.json`))!, 'metadata.json'),
  };
}

const chunk = { index: 0, count: 1 };
const prefixOf = (round: SamplingRound, run: string) =>
  layout.resultsOfChunk('main', round, { environment: 'reverse-text', run, chunk: partName(chunk, round.first) });

async function scoredRound(t: TestContext) {
  const own = await makeRun(t);
  const roles = openRoles(new WordsInference());
  const { state } = await commitFirst(own, roles);
  const { run, store } = own;
  const { policy, curriculum } = state;
  const { round } = await roles.leaseGroups({ run, count: 2, datasets, step: 1, policy, curriculum });
  const { parts } = await act(roles.playGroups, { run, round, chunk });
  return { run, store, roles, round, scored: parts[0]!.scored };
}

describe('results as verifiers writes them', () => {
  test('a scored round leaves one row for each rollout, with what the model said and was given for it', async (t) => {
    const { run, store, round, scored } = await scoredRound(t);
    const { rows, metadata } = await readResults(store, prefixOf(round, run.name));
    const groups = decodeRows<ScoredGroup>((await store.read(scored.key))!, scored.key);
    assert.deepEqual(
      rows.map(({ ratchet, reward }) => [ratchet.group, reward]),
      groups.flatMap(({ ordinal, rollouts }) => rollouts.map(({ reward }) => [ordinal, reward])),
    );
    assert.deepEqual([metadata['env_id'], metadata['model']], ['reverse-text', run.name]);
    assert.equal(metadata['num_examples'], groups.length);
    // Training reads none of this: what it reads holds no rows of environments.
    assert.ok(groups.every(({ rollouts }) => rollouts.every((rollout) => !('record' in rollout))));
  });

  test('a worker that dies after scoring has its results written by the retry, the same', async (t) => {
    const { run, store, roles, round } = await scoredRound(t);
    const prefix = prefixOf(round, run.name);
    const before = await readResults(store, prefix);
    await store.removeAll(prefix);
    await store.removeAll(layout.playedPart('main', round, partName(chunk, round.first))); // it comes after them
    await act(roles.playGroups, { run, round, chunk });
    const { metadata, rows } = await readResults(store, prefix);
    assert.deepEqual([rows, metadata['avg_reward']], [before.rows, before.metadata['avg_reward']]);
  });

  test('each rollout is stored once, compressed: what else there is of a made step is small', async (t) => {
    const own = await makeRun(t);
    const { store } = own;
    const roles = openRoles(new WordsInference());
    await planNext(own, roles, await commitFirst(own, roles));
    const rounds = (await store.list(layout.allRounds('main'))).filter((key) => layout.isScored(key));
    const bytes = (await store.read(rounds[0]!))!;
    assert.ok(bytes.byteLength * 3 < unpacked(bytes, rounds[0]!).byteLength);
    const results = await store.list(layout.allResults('main'));
    assert.ok(results.every((key) => key.endsWith('/metadata.json')));
    const cut = bytes.subarray(0, bytes.byteLength - 9);
    assert.throws(
      () => decodeRows(cut, rounds[0]!),
      /scored\.jsonl\.gz.*expected rows of JSON, found a gzip file that is cut or changed/s,
    );
  });
});
