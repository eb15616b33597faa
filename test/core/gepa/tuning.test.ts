import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { defaultSettings } from '../../../core/gepa/settings.ts';
import { tunedSettings } from '../../../core/gepa/tuning.ts';
import { parseGepaFile } from '../../../config/searches/parse-gepa-file.ts';

const sizes = { seed: 0, maxCalls: 500, trainSize: 100, valSize: 50 };

describe('what a person sets of a search', () => {
  test('holds over what is chosen for the budget, and nothing else changes', () => {
    const usual = defaultSettings(sizes);
    const tuned = defaultSettings({ ...sizes, ...tunedSettings({ screen: 20, proposals: 2 }) });
    assert.deepEqual(tuned, { ...usual, screen: 20, proposals: 2, final: { ...usual.final!, examples: 10 } });
    assert.deepEqual(defaultSettings({ ...sizes, ...tunedSettings({}) }), usual);
  });

  test('-1 examples to screen by are all of them', () => {
    assert.equal(defaultSettings({ ...sizes, ...tunedSettings({ screen: -1 }) }).screen, null);
  });

  test('as many iterations are side by side as was said, and never more', () => {
    const { parallel, parallelMax } = defaultSettings({ ...sizes, ...tunedSettings({ parallel: 1 }) });
    assert.deepEqual([parallel, parallelMax], [1, 1]);
  });

  test('several strategies are drawn from with equal weights', () => {
    const { candidateSelection } = tunedSettings({ selection: ['pareto', 'epsilon_greedy'] });
    assert.deepEqual(candidateSelection, {
      kind: 'mixed',
      of: [
        { weight: 1, selection: { kind: 'pareto' } },
        { weight: 1, selection: { kind: 'epsilon_greedy', epsilon: 0.1 } },
      ],
    });
    assert.deepEqual(tunedSettings({ selection: ['top_k_pareto'] }).candidateSelection, { kind: 'top_k_pareto', k: 5 });
  });

  test('is read from a file, and refused where it is none of what there is', () => {
    const file = (gepa: string) =>
      parseGepaFile(`model = "m"\n[[env]]\nenv_id = "reverse-text"\n[gepa]\n${gepa}`, { file: 'search.toml' });
    const read = file(
      'screen = -1\nproposals = 3\nparallel = 2\ncandidate_selection_strategy = "current_best"\nfrontier_type = "hybrid"',
    );
    assert(read.ok);
    assert.deepEqual(read.spec.tuning, {
      screen: -1,
      proposals: 3,
      parallel: 2,
      selection: ['current_best'],
      frontier: 'hybrid',
    });
    for (const wrong of [
      'proposals = 0',
      'candidate_selection_strategy = ["best"]',
      'frontier_type = "example"',
      'screen = 0',
    ]) {
      const refused = file(wrong);
      assert(!refused.ok, wrong);
      assert.match(refused.problems[0]!.path, new RegExp(`^gepa\\.${wrong.split(' ')[0]}`));
    }
  });
});
