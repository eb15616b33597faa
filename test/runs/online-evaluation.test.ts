import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { checkpointCurves } from '../../core/eval/checkpoint-curve.ts';
import { measuredRow } from '../../core/eval/measured-row.ts';
import { environmentsDue } from '../../workflows/beside/evaluations-due.ts';
import { onlineEvaluation } from '../../runs/evaluations/online-evaluation.ts';
import type { PolicyVersion, RunHandle } from '../../core/rl/run-state.ts';
import { parseRunConfig } from '../../config/parse-run-config.ts';
import { checkpointLines } from '../../cli/eval/checkpoint-table.ts';

const text = `
model = "preset:reverse-text-0.2m"
max_steps = 20
[[env]]
id = "reverse-text"
[sampling]
max_tokens = 10
[eval]
interval = 10
num_examples = 8
[[eval.env]]
id = "reverse-text"
name = "often"
interval = 4
rollouts_per_example = 2
[[eval.env]]
id = "reverse-text"
name = "seldom"
skip_first = 5
sampling = { temperature = 0 }
`;
const parsed = parseRunConfig(text, { file: 'run.toml' });
assert.ok(parsed.ok);
const { spec } = parsed;

const object = { key: '', sha256: '', bytes: 0 };
const run: RunHandle = { name: 'words', store: 'file:///runs/', lineage: 'l2', spec: object, attempt: 3 };
const version = (step: number, folder: string, replay?: number): PolicyVersion => {
  return {
    step,
    digest: 'd',
    weights: `${folder}weights/step_${step}/`,
    file: object,
    sums: object,
    ...(replay ? { replay } : {}),
  };
};

describe('which evaluations are due', () => {
  const due = (step: number, evalInterval?: number): string[] =>
    environmentsDue(spec.eval, step, {
      lastStep: 20,
      overrides: evalInterval === undefined ? {} : { evalInterval },
    }).map(({ name }) => name);

  test('all of v0 and of the last version, else each at its own interval', () => {
    assert.deepEqual(
      [0, 4, 5, 10, 12, 20].map((step) => due(step)),
      [['often', 'seldom'], ['often'], [], ['seldom'], ['often'], ['often', 'seldom']],
    );
  });

  test('an interval that was set while the run runs holds for those without one of their own', () => {
    assert.deepEqual(due(10, 5), ['seldom']);
    assert.deepEqual(due(15, 5), ['seldom']);
    assert.deepEqual(due(16, 5), ['often']);
  });
});

describe('what an evaluation of a version is', () => {
  const of = (policy: PolicyVersion, entry: number, variant: 'sampled' | 'greedy') =>
    onlineEvaluation({ run, spec, policy }, spec.eval!.environments[entry]!, variant, { workflowId: 'words' });

  test('its workflow and its place say run, environment, lineage and version, wherever the run stands now', () => {
    const first = of(version(4, ''), 0, 'sampled');
    assert.equal(first.workflowId, 'words.eval.often.v4');
    assert.equal(first.input.results.prefix, 'evals/often--words/step_4/');
    const later = of(version(8, 'lineages/l2/', 1), 0, 'greedy');
    assert.equal(later.workflowId, 'words.eval.often.l2.v8.r1.greedy');
    assert.equal(later.input.results.prefix, 'lineages/l2/evals/often--words/step_8.r1.greedy/');
  });

  test('greedy is once, at temperature 0; an environment has examples and sampling of its own', () => {
    assert.equal(of(version(4, ''), 0, 'sampled').input.rolloutsPerExample, 2);
    const { input } = of(version(4, ''), 0, 'greedy');
    assert.equal(input.rolloutsPerExample, 1);
    assert.equal(input.model.kind === 'version' && input.model.sampling.temperature, 0);
    const own = of(version(4, ''), 1, 'sampled').input;
    assert.equal(own.skipExamples, 5);
    assert.equal(own.model.kind === 'version' && own.model.sampling.temperature, 0);
  });
});

test('what is measured of a row is what was measured of its rollout', () => {
  const row = {
    example_id: 3,
    reward: 0.5,
    metrics: { exact_match: 0 },
    completion: [
      { role: 'assistant', content: 'a' },
      { role: 'tool', content: 'b' },
      { role: 'assistant', content: 'c' },
    ],
    token_usage: { output_tokens: 7 },
    ratchet: { outcome: 'truncated', index: 0 },
  };
  assert.deepEqual(measuredRow(row), {
    reward: 0.5,
    outcome: 'truncated',
    tokens: 7,
    turns: 2,
    metrics: { exact_match: 0 },
  });
  assert.equal(measuredRow({ ...row, reward: null, ratchet: { outcome: 'timeout' } }).outcome, 'timeout');
});

test('the curve of checkpoints marks the best, and what is worse than chance has it', () => {
  const figures = [0.2, 0.8, 0.7].map((reward, i) => ({
    step: i * 10,
    environment: 'words',
    reward,
    passAtK: { 1: reward },
    failed: 0,
    rollouts: 64,
    rewards: Object.fromEntries(Array.from({ length: 64 }, (_, id) => [String(id), reward])),
  }));
  const curves = checkpointCurves('run', figures.toReversed());
  assert.deepEqual(
    curves.get('words')!.map(({ step, isBest, worseThan }) => [step, isBest, worseThan]),
    [
      [0, false, null],
      [10, true, null],
      [20, false, 10],
    ],
  );
  const lines = checkpointLines(curves);
  assert.match(
    lines.join('\n'),
    /words\n.*pass@1.*\n.*\n {2}10 +0\.800 +0\.800 +64 +best\n {2}20 .* worse than v10 \(95 %\)\n {2}▁█▇/,
  );
});

test('a checkpoint is held against those under the same prompt alone, and a new prompt is marked', () => {
  const figures = [0.8, 0.4, 0.2].map((reward, i) => ({
    step: i,
    environment: 'words',
    ...(i === 0 ? {} : { prompt: 'x' }),
    reward,
    passAtK: {},
    failed: 0,
    rollouts: 64,
    rewards: Object.fromEntries(Array.from({ length: 64 }, (_, id) => [String(id), reward])),
  }));
  const rows = checkpointCurves('run', figures).get('words')!;
  assert.deepEqual(
    rows.map(({ worseThan, isPromptNew }) => [worseThan, isPromptNew]),
    [
      [null, false],
      [null, true],
      [1, false],
    ],
  );
  const lines = checkpointLines(new Map([['words', rows]]));
  assert.match(lines.join('\n'), /\n {2}1 .* another prompt from here on\n {2}2 .* worse than v1 \(95 %\)/);
});
