/** Evaluations in environments that misbehave: they end, and failures are reported under their own kind. */
import assert from 'node:assert/strict';
import { test, type TestContext } from 'node:test';
import { createEnvironments, openEnvironment, type Environment } from '../../backends/environments/index.ts';
import type { Execution } from '../../activities/record-change.ts';
import { changeLine } from '../../core/rl/changes.ts';
import { readChanges } from '../../runs/changes.ts';
import { readMetrics } from '../../runs/metrics/metrics.ts';
import { evalLine, evalValues } from '../../workflows/control/lines.ts';
import { commitFirst, evaluateVersion, makeRun, openRoles, WordsInference } from './runs.ts';

const settings = {
  eval: '{ interval = 1, env = [{ id = "reverse-text", name = "words", num_examples = 6 }] }',
  generation_timeout: '1',
};

/** Evaluates v0 where `misbehave` is asked before each rollout. */
async function evaluation(t: TestContext, misbehave: (exampleId: number) => Promise<void> | void) {
  const environments = createEnvironments(async (entry): Promise<Environment> => {
    const words = await openEnvironment(entry);
    return {
      ...words,
      async rollout(example, policy) {
        await misbehave(example.id);
        return words.rollout(example, policy);
      },
    };
  });
  const { run, spec, store, folder } = await makeRun(t, settings);
  const roles = openRoles(new WordsInference(), { environments });
  await commitFirst({ run, spec, store, folder }, roles);
  const { summary } = await evaluateVersion(roles, { run, spec }, 0);
  const row = (await readMetrics(store)).find((found) => 'eval/words/policy_version' in found)!;
  return { summary, row };
}

test('an evaluation whose environment hangs ends: what hangs is a timeout, the rest is scored', async (t) => {
  const { summary, row } = await evaluation(t, (exampleId) =>
    exampleId === 2 ? new Promise<void>(() => undefined) : undefined,
  );
  assert.equal(summary.rollouts, 6);
  assert.equal(typeof summary.sampled.reward, 'number');
  assert.match(summary.failures!.join(), /× not finished in time \(timeout\), the first: .*had ended for 3 s/);
  assert.equal(row['eval/words/error/timeout'], 1);
  assert.match(evalLine(summary), /reward \d.*failed: 1 × not finished in time.*greedy: 1 × not finished/);
});

test('an evaluation in which everything failed has no reward, rather than one of 0', async (t) => {
  const { summary, row } = await evaluation(t, () => {
    throw new Error('the sandbox has no disk left');
  });
  assert.deepEqual(
    [summary.sampled, summary.greedy],
    [
      { reward: null, exact: null },
      { reward: null, exact: null },
    ],
  );
  assert.deepEqual(
    Object.keys(row).filter((name) => name.includes('reward')),
    [],
  );
  assert.match(evalLine(summary), /reward –  greedy –.*failed: 6 × environment errors .*no disk left.*greedy: 6 ×/s);
  assert.deepEqual(evalValues(summary), { environment: 'words' });
});

test('a rollout that failed is in no mean, and the row says how many examples were right at once or once', async (t) => {
  const { summary, row } = await evaluation(t, () => undefined);
  assert.equal(row['eval/words/avg@1'], summary.sampled.reward);
  assert.match(evalLine(summary), /\(\d+ held-out\)/);
  assert.match(evalLine({ ...summary, rollouts: 12, passAtK: { 2: 0.5 } }), /\(12 rollouts, held-out\)/);
  assert.equal(row['eval/words/reward/mean'], summary.sampled.reward);
  assert.equal(row['eval/words/greedy/reward/mean'], summary.greedy.reward);
  assert.equal(typeof row['eval/words/num_output_tokens/mean'], 'number');
  assert.equal(row['eval/words/num_turns/mean'], 1);
  assert.equal(row['eval/words/has_error/mean'], 0);
});

test('who started an evaluation by itself is kept in its folder when it is opened', async (t) => {
  const around = ({ workflow, execution }: Execution) =>
    Promise.resolve([{ ...startedByAnn, workflow, execution, what: 'start', asked: '', id: 'start' }]);
  const nobody = () => Promise.resolve(null);
  const { run, spec, store, folder } = await makeRun(t, settings);
  const roles = openRoles(new WordsInference(), { history: { update: nobody, around, cancelled: nobody } });
  await commitFirst({ run, spec, store, folder }, roles);
  await evaluateVersion(roles, { run, spec }, 0);
  const kept = (await store.list('evals/')).filter((key) => key.includes('/evaluation/changes/'));
  const prefixes = kept.map((key) => key.slice(0, key.indexOf('evaluation/')));
  assert.deepEqual(prefixes.length, 2, 'as sampled, and greedy');
  for (const prefix of prefixes) {
    const of = { kind: 'evaluation', place: { store: run.store, name: run.name, prefix } } as const;
    assert.deepEqual((await readChanges(of)).changes.map(changeLine), ['ann@laptop asked: start']);
  }
});

const startedByAnn = { time: '2026-12-01T10:00:00.000Z', identity: 'ratchet ann@laptop 4711', principal: null };
