import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { advise, type AdviceSettings, type StepFigures } from '../../../core/rl/advice.ts';
import type { Finding } from '../../../core/rl/rules-of-thumb.ts';

const settings: AdviceSettings = {
  learningRate: 1e-3,
  rolloutsPerExample: 8,
  batchSize: 64,
  maxAsyncLevel: 0,
  maxTokens: 32,
  temperature: 1,
  maxGradNorm: 1,
  klBeta: 0,
};

/** A run of 60 steps that learns and has nothing wrong with it, with a little noise that is the same every time. */
function healthy(change: (step: number) => Record<string, number> = () => ({}), count = 60): StepFigures[] {
  return Array.from({ length: count }, (_, i) => {
    const noise = Math.sin(i * 12.9898) * 0.02;
    const metrics = {
      'train/reward': 0.2 + (0.4 * i) / count + noise,
      'train/loss': -0.1,
      entropy: 1 - (0.5 * i) / count + noise,
      grad_norm: 1 + noise,
      clip_fraction: 0.01,
      mismatch_kl: 0.002,
      'train/kl_divergence': 0.001 * i,
      'off_policy/mean': 0,
      'train/agg/all/is_truncated/mean': 0.01,
      'train/agg/all/has_error/mean': 0,
      'batch/groups': 8,
      'filter/no_signal': 1,
      'rollout/generation_time': 1,
      'rollout/scoring_time': 0.1,
      'time/train': 1,
      'time/step': 2.2,
    };
    return { step: i + 1, metrics: { ...metrics, ...change(i + 1) } };
  });
}

function findings(steps: readonly StepFigures[], ettr: number | null = 1): Finding[] {
  return advise({ steps, settings, ettr });
}

function only(found: readonly Finding[], symptom: Finding['symptom'], evidence: RegExp): void {
  assert.equal(found.length, 1, JSON.stringify(found, null, 1));
  assert.equal(found[0]!.symptom, symptom);
  assert.match(found[0]!.evidence, evidence);
  assert.ok(found[0]!.causes.length > 0 && found[0]!.change.length > 0, 'causes, and what to change');
}

describe('advice on a run', () => {
  test('a run that learns with nothing wrong is told nothing', () => {
    assert.deepEqual(findings(healthy()), []);
  });

  test('a reward that falls from its best stretch is unstable, with the step to go back to', () => {
    const found = findings(healthy((step) => (step > 40 ? { 'train/reward': 0.1 + Math.sin(step) * 0.01 } : {})));
    only(found, 'unstable', /^reward fell from 0\.\d+ \(steps \d+–\d+\) to 0\.\d+ \(steps 46–60\)$/);
    assert.match(found[0]!.change.join('\n'), /ratchet rewind RUN --step (3\d|40):/);
  });

  test('a reward that only wanders does not learn, unless it is high already', () => {
    const flat = (level: number) => healthy((step) => ({ 'train/reward': level + Math.sin(step * 7) * 0.05 }));
    only(findings(flat(0.3)), 'no learning', /no difference beyond the noise/);
    assert.deepEqual(findings(flat(0.9)), []);
  });

  test('entropy that falls to a tenth has collapsed, since a step that is named; not where all is solved', () => {
    const fall = (step: number) => ({ entropy: step < 30 ? 1 : 0.02 });
    only(findings(healthy(fall)), 'unstable', /below a tenth since step 30$/);
    assert.deepEqual(findings(healthy((step) => ({ ...fall(step), 'train/reward': Math.min(0.95, step / 30) }))), []);
  });

  test('a KL that runs away, or is large, is told', () => {
    only(
      findings(healthy((step) => ({ 'train/kl_divergence': step > 40 ? 0.5 : 0.01 }))),
      'unstable',
      /kl_divergence 0\.5 .*\(0\.01 in the middle/,
    );
    const [large] = findings(healthy(() => ({ 'train/kl_divergence': 2 })));
    assert.equal(large?.level, 'note');
  });

  test('spikes of the gradient norm are named by their steps, and a single one is not told', () => {
    const spikesAt = (steps: readonly number[]) => healthy((step) => (steps.includes(step) ? { grad_norm: 30 } : {}));
    only(findings(spikesAt([20, 30, 40])), 'unstable', /at 3 of 60 steps: 20, 30, 40$/);
    assert.deepEqual(findings(spikesAt([30])), []);
  });

  test('tokens outside of the clip range, samples that disagree or are old', () => {
    only(findings(healthy(() => ({ clip_fraction: 0.4 }))), 'unstable', /^40 % of the tokens/);
    only(findings(healthy(() => ({ mismatch_kl: 0.2 }))), 'unstable', /^mismatch_kl 0\.2/);
    only(findings(healthy(() => ({ 'off_policy/mean': 4 }))), 'unstable', /^samples are 4 versions old/);
  });

  test('groups that were sampled for nothing make a run slow, by reason', () => {
    const easy = { 'filter/no_signal': 40, 'train/agg/all/solved_all': 0.8, 'train/agg/all/solved_none': 0 };
    only(findings(healthy(() => easy)), 'slow', /^83\.3 % of 720 groups .* 600 no_signal; fewer than a quarter/);
    const alike = { 'filter/no_signal': 20, 'train/agg/all/solved_all': 0, 'train/agg/all/solved_none': 0 };
    assert.match(findings(healthy(() => alike))[0]!.causes[0]!, /alike/);
  });

  test('answers that are cut off, rollouts that fail, and time that is lost', () => {
    only(
      findings(healthy(() => ({ 'train/agg/all/is_truncated/mean': 0.4 }))),
      'no learning',
      /^40 % .* max_tokens = 32/,
    );
    const failing = { 'train/agg/all/has_error/mean': 0.2, 'train/agg/all/error/timeout': 3 };
    only(findings(healthy(() => failing)), 'lost work', /^20 % .*: 45 timeout$/);
    only(
      findings(
        healthy((step) => (step === 7 ? { 'recovery/count': 1, 'lost/seconds': 90 } : {})),
        0.5,
      ),
      'lost work',
      /^ETTR 0\.50: 1 recovery \(step 7\)/,
    );
  });

  test('what a step spends its time on is told where one part waits for the other', () => {
    only(findings(healthy(() => ({ 'rollout/generation_time': 5, 'time/step': 6 }))), 'slow', /^bound by generation: /);
    only(findings(healthy(() => ({ 'time/train': 5, 'time/step': 6 }))), 'slow', /^bound by training: /);
    const scoring = { 'rollout/generation_time': 1, 'rollout/scoring_time': 5, 'time/step': 7 };
    only(findings(healthy(() => scoring)), 'slow', /^bound by scoring: /);
  });

  test('a run of a few steps has no trend yet, and a metric that is missing is not judged', () => {
    const young = findings(healthy(() => ({}), 4));
    assert.match(young[0]!.evidence, /^4 trained steps/);
    assert.deepEqual(
      findings(healthy().map(({ step, metrics }) => ({ step, metrics: { 'train/reward': metrics['train/reward']! } }))),
      [],
    );
    assert.equal(findings([]).length, 1);
  });
});
