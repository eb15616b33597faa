import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { advise, type AdviceSettings, type StepFigures } from '../../../core/rl/advice/advice.ts';
import type { Finding } from '../../../core/rl/advice/rules-of-thumb.ts';

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

function findings(
  steps: readonly StepFigures[],
  ettr: number | null = 1,
  ineffective: string | null = null,
): Finding[] {
  return advise({ steps, settings, ettr, ineffective });
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
    assert.match(found[0]!.change.join('\n'), /ratchet-rl rewind RUN --step (3\d|40):/);
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
    const rest = '14.2 s in 2 steps (41, 12) that waited beside sampling and training';
    only(
      findings(
        healthy(() => ({})),
        0.86,
        rest,
      ),
      'slow',
      /^ETTR 0\.86: no recoveries, nothing lost; not effective: 14\.2 s in 2 steps \(41, 12\) that waited /,
    );
  });

  test('what a step spends its time on is told where one part waits for the other', () => {
    only(findings(healthy(() => ({ 'rollout/generation_time': 5, 'time/step': 6 }))), 'slow', /^bound by generation: /);
    only(findings(healthy(() => ({ 'time/train': 5, 'time/step': 6 }))), 'slow', /^bound by training: /);
    const scoring = { 'rollout/generation_time': 1, 'rollout/scoring_time': 5, 'time/step': 7 };
    only(findings(healthy(() => scoring)), 'slow', /^bound by scoring: /);
  });

  test('a rate is not raised where the reward did not rise, also where the fall is within the noise', () => {
    // Like a run that collapsed after 14 steps: 0.18 with much noise, then next to nothing, most answers truncated.
    const rewards = [0.18, 0.4, 0, 0.35, 0.02, 0.2, 0.3, 0, 0.1, 0.05, 0.02, 0, 0.03, 0.02];
    const collapsed = healthy(
      (step) => ({
        'train/reward': rewards[step - 1]!,
        'train/agg/all/is_truncated/mean': step > 9 ? 0.82 : 0.2,
        grad_norm: [8, 11].includes(step) ? 60 : 1,
      }),
      rewards.length,
    );
    const found = findings(collapsed);
    const [fall] = found;
    assert.match(fall!.evidence, /lower than it was, though no difference beyond the noise/);
    assert.match(fall!.change.join('\n'), /learning_rate=5e-4 .*\n.*rewind RUN --step \d/);
    assert.deepEqual(ratesOf(found), [5e-4]);
    assert.doesNotMatch(JSON.stringify(found), /too low/);
  });

  test('a rate is raised where a steady run rises too little to be sure', () => {
    const rising = healthy((step) => ({ 'train/reward': 0.3 + step * 0.0005 + Math.sin(step * 7) * 0.05 }));
    assert.deepEqual(ratesOf(findings(rising)), [0.003]);
    const cutOff = rising.map(({ step, metrics }) => ({
      step,
      metrics: { ...metrics, 'train/agg/all/is_truncated/mean': 0.5 },
    }));
    assert.deepEqual(ratesOf(findings(cutOff)), []);
  });

  test('no answer contradicts itself, whatever the history', () => {
    const axes: Record<string, ((step: number, count: number) => Record<string, number>)[]> = {
      reward: [
        () => ({}),
        (step) => ({ 'train/reward': 0.3 + Math.sin(step * 7) * 0.05 }),
        (step) => ({ 'train/reward': 0.3 + step * 0.0005 + Math.sin(step * 7) * 0.05 }),
        (step, count) => ({ 'train/reward': 0.6 - (0.5 * step) / count }),
        (step, count) => ({ 'train/reward': step > count / 2 ? 0.02 : 0.2 + Math.sin(step * 7) * 0.2 }),
        (step) => ({ 'train/reward': 0.9 + Math.sin(step * 7) * 0.05 }),
      ],
      entropy: [() => ({}), (step, count) => ({ entropy: step < count / 2 ? 1 : 0.02 })],
      gradients: [() => ({}), (step) => (step % 6 === 0 ? { grad_norm: 50 } : {})],
      clipped: [() => ({}), () => ({ clip_fraction: 0.4 })],
      mismatch: [() => ({}), () => ({ mismatch_kl: 0.2 })],
      cutOff: [() => ({}), () => ({ 'train/agg/all/is_truncated/mean': 0.8 })],
      groups: [
        () => ({}),
        () => ({ 'filter/too_easy': 90, 'train/agg/all/solved_all': 0.8 }),
        () => ({ 'filter/too_hard': 90, 'train/agg/all/solved_none': 0.8 }),
        () => ({ 'filter/no_signal': 90, 'train/agg/all/solved_all': 0 }),
      ],
      time: [
        () => ({}),
        () => ({ 'rollout/generation_time': 5, 'time/step': 6 }),
        () => ({ 'time/train': 5, 'time/step': 6 }),
      ],
    };
    const histories = Object.values(axes).reduce<((step: number, count: number) => Record<string, number>)[]>(
      (all, choices) =>
        all.flatMap((before) =>
          choices.map((choice) => (step, count) => ({ ...before(step, count), ...choice(step, count) })),
        ),
      [() => ({})],
    );
    assert.equal(histories.length, 6 * 2 * 2 * 2 * 2 * 2 * 4 * 3);
    let told = 0;
    for (const history of histories) {
      for (const [count, asked] of [
        [14, settings],
        [60, { ...settings, batchSize: 512, maxAsyncLevel: 2 }],
      ] as const) {
        const steps = healthy((step) => history(step, count), count);
        const found = advise({ steps, settings: asked, ettr: 1, ineffective: null });
        told += found.length;
        const text = found.flatMap(({ causes, change }) => [...causes, ...change]).join('\n');
        for (const [one, other] of opposites)
          assert.ok(!(one.test(text) && other.test(text)), `${one} and ${other} in one answer:\n${text}`);
        assert.ok(new Set(ratesOf(found)).size <= 1, text);
        const isUnsteady = found.some(({ symptom, evidence }) => symptom === 'unstable' || /cut off/.test(evidence));
        if (isUnsteady)
          assert.ok(
            ratesOf(found).every((rate) => rate < asked.learningRate),
            text,
          );
      }
    }
    assert.ok(told > histories.length, 'the histories have something to tell');
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

/** Learning rates that are recommended. */
function ratesOf(found: readonly Finding[]): number[] {
  return found.flatMap(({ change }) =>
    change.flatMap((what) => {
      const rate = /learning_rate=(\S+)/.exec(what)?.[1];
      return rate === undefined ? [] : [Number(rate)];
    }),
  );
}

/** Items that exclude each other, as a reader recognises them. */
const opposites: readonly (readonly [RegExp, RegExp])[] = [
  [/learning rate is too high/, /learning rate is too low/],
  [/easier examples|too hard/, /harder examples|too easy/],
  [/stop here/, /ratchet-rl rewind/],
  [/max_tokens above|more room/, /max_tokens lower/],
  [/rollouts_per_example 16 to 32|more rollouts_per_example|groups of 32/, /rollouts_per_example 4 to 8/],
  [/batch_size above/, /batch_size lower/],
  [/max_async_level = 0/, /max_async_level = 1/],
  [/online_difficulty_filtering = true/, /wider min_reward|on_starvation = "widen"/],
  [/a larger model/, /a smaller model/],
];
