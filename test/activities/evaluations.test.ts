/** Evaluations in environments that misbehave: they end, and what failed is told as what it is. */
import assert from 'node:assert/strict';
import { test, type TestContext } from 'node:test';
import { createEnvironments, openEnvironment, type Environment } from '../../backends/environments/index.ts';
import { readMetrics } from '../../backends/metrics/jsonl.ts';
import { evalLine, evalValues } from '../../workflows/lines.ts';
import { act, commitFirst, makeRun, openRoles, WordsInference } from './runs.ts';

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
  const [summary] = await act(roles.evaluatePolicy, { run, step: 0 });
  const row = (await readMetrics(store)).find((found) => 'eval/words/policy_version' in found)!;
  return { summary: summary!, row };
}

test('an evaluation whose environment hangs ends: what hangs is a timeout, the rest is scored', async (t) => {
  const { summary, row } = await evaluation(t, (exampleId) =>
    exampleId === 2 ? new Promise<void>(() => undefined) : undefined,
  );
  assert.equal(summary.rollouts, 6);
  assert.equal(typeof summary.sampled.reward, 'number');
  assert.match(summary.failures!.join(), /^2 × not finished in time \(timeout\), the first: .*3 × generation_timeout/);
  assert.equal(row['eval/words/error/timeout'], 1);
  assert.match(evalLine(summary), /reward \d.*failed: 2 × not finished in time/);
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
  assert.match(evalLine(summary), /reward –  greedy –.*failed: 12 × environment errors .*no disk left/s);
  assert.deepEqual(evalValues(summary), { environment: 'words' });
});
