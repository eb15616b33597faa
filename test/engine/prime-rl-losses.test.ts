/** The losses of rewards that prime-rl's files of today name, as they are read and computed here, beside its own formulas (test/data/algorithms/record_prime_rl_losses.py). */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { after, describe, test } from 'node:test';
import { LogprobLoss } from '../../engine/index.ts';
import { accept } from '../config/read-run.ts';

interface LossCase {
  readonly type: string;
  readonly settings: Readonly<Record<string, number>>;
  /** Summed over the tokens. */
  readonly loss: number;
  readonly gradient: readonly number[];
}
const golden = JSON.parse(
  readFileSync(new URL('../data/algorithms/prime-rl-losses.json', import.meta.url), 'utf8'),
) as Readonly<Record<'policy' | 'sampler' | 'advantages', readonly number[]>> & { readonly cases: readonly LossCase[] };

const prompt = [0];
const tokens = golden.policy.map(() => 1);
const row = {
  tokenIds: [...prompt, ...tokens],
  lossMask: [...prompt, ...tokens],
  behaviorLogprobs: [...prompt, ...golden.sampler],
  advantages: [...prompt, ...golden.advantages],
};
const computed = new LogprobLoss();
after(() => computed.close());

describe('a loss of prime-rl’s gives prime-rl’s figure and gradient', () => {
  for (const { type, settings, loss, gradient } of golden.cases) {
    test(`${type} ${JSON.stringify(settings)}`, async () => {
      const said = Object.entries({ type, ...settings }).map(([key, value]) => `${key} = ${JSON.stringify(value)}\n`);
      const { spec } = accept(`max_steps = 9
[orchestrator]
group_size = 8
[[orchestrator.train.source]]
env = { taskset = { id = "owner/gsm8k" } }
[trainer.loss]
${said.join('')}`);
      const pass = await computed.pass([row], { loss: spec.loss, temperature: 1, klBeta: 0 }, [
        [...prompt, ...golden.policy],
      ]);
      requireNear(pass.metrics.loss * tokens.length, loss, 'the loss');
      for (const [i, slope] of gradient.entries()) {
        requireNear(pass.gradients[0]![prompt.length + i]! * tokens.length, slope, `the gradient of token ${i}`);
      }
    });
  }
});

/** The graphs compute in float32. */
function requireNear(found: number, expected: number, what: string): void {
  const error = Math.abs(found - expected);
  assert.ok(error <= 1e-5 * Math.max(1, Math.abs(expected)), `${what}: ${found}, prime-rl has ${expected}`);
}
