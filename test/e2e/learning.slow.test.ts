/** The embedded model learns the text environments: held-out evaluations before and after a few steps of RL. */
import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { taskQueues } from '../../core/names.ts';
import type { RunSummary } from '../../workflows/train-run.ts';
import { openSmallProject, repositoryFolder, type SmallProject } from './small-run.ts';

/**
 * The shipped files with fewer steps. Gains of held-out reward, seeds 0, 1, 2, as measured with steps of this number and size: alphabet-sort 0.175,
 * 0.150, 0.164 and arithmetic 0.101, 0.047, 0.077 (there after 40 of the 60 steps). At async level 0 a run gives the
 * same bits again, so that only another machine's rounding moves these figures.
 */
const small = {
  'alphabet-sort': {
    overrides: { max_steps: 30, batch_size: 128, 'sft.steps': 300 },
    replaced: ['max_names_per_turn = 2', 'max_names_per_turn = 1'],
    gainMin: 0.08,
  },
  arithmetic: {
    overrides: { max_steps: 60, batch_size: 256, 'sft.steps': 400 },
    replaced: ['', ''],
    gainMin: 0.03,
  },
} as const;

let project: SmallProject;
before(async () => {
  const configs = await Promise.all(
    Object.entries(small).map(async ([name, { replaced }]) => {
      const text = await readFile(path.join(repositoryFolder, `configs/rl/${name}.toml`), 'utf8');
      return [`${name}.toml`, text.replace(...(replaced as [string, string]))] as const;
    }),
  );
  project = await openSmallProject(Object.fromEntries(configs));
});
after(() => project.close());

for (const [name, { overrides, gainMin }] of Object.entries(small)) {
  test(`${name} is learned: the reward on held-out examples rises by ${gainMin} at least`, async (t) => {
    const settings = {
      max_async_level: 0,
      'eval.interval': overrides.max_steps,
      'eval.num_examples': 256,
      ...overrides,
    };
    const summary = (await project.client.workflow.execute('trainRun', {
      taskQueue: taskQueues.orchestrator,
      workflowId: name,
      args: [
        {
          config: `${name}.toml`,
          overrides: Object.fromEntries(Object.entries(settings).map(([key, value]) => [key, String(value)])),
        },
      ],
    })) as RunSummary;
    const [first, last] = summary.evals.toSorted((a, b) => a.step - b.step).map(({ sampled }) => sampled);
    t.diagnostic(`before ${JSON.stringify(first)}, after ${JSON.stringify(last)}`);
    assert.equal(summary.evals.length, 2);
    const [before, after] = [first!.reward ?? Number.NaN, last!.reward ?? Number.NaN];
    assert.ok(after - before >= gainMin, `${before} → ${after}`);
  });
}
