import { RatchetError } from '../../core/errors.ts';
import type { StepPlan } from '../../core/rl/run-state.ts';
import { isTinkerLoss } from '../../config/models/tinker-spec.ts';
import type { LoraSpec, OptimizerSpec, TinkerTrainerSpec } from '../../config/run-spec.ts';
import { lossBy, policyLosses, type ServerFacts, type ServerLoss } from './server-facts.ts';
import type { AdamParams } from './types.ts';

/** A run's settings of a step, in the words of the Tinker API. */

/** Layers that such a server adapts together. */
export function layersOf({ lora }: { readonly lora: LoraSpec | null }): {
  attention: boolean;
  mlp: boolean;
  unembedding: boolean;
} {
  const has = (...names: string[]): boolean => lora === null || names.some((name) => lora.targetModules.includes(name));
  return {
    attention: has('q_proj', 'k_proj', 'v_proj', 'o_proj'),
    mlp: has('up_proj', 'down_proj', 'gate_proj'),
    unembedding: lora === null,
  };
}

/** Refuses plans that `ratchet check` refuses; no loss is replaced by another. */
export function requireKnown({ loss, temperature }: StepPlan): void {
  if (temperature !== 1)
    throw new RatchetError(
      'Unsupported',
      `A Tinker server trains at temperature 1; got ${temperature}. docs/guide/tinker.md says why.`,
    );
  if (loss.type === 'cross_entropy' && !isTinkerLoss(loss, 0))
    throw new RatchetError('Unsupported', 'The loss "cross_entropy" has no teacher beside it.');
}

export function adam(
  { beta1, beta2, epsilon, weightDecay, maxGradNorm }: OptimizerSpec,
  learningRate: number,
): AdamParams {
  return {
    learning_rate: learningRate,
    beta1,
    beta2,
    eps: epsilon,
    weight_decay: weightDecay,
    grad_clip_norm: maxGradNorm,
  };
}

/** SkyRL reports the gradient's norm before clipping. */
export function stepMetrics(told: Readonly<Record<string, number>>): Record<string, number> {
  const norm = Object.entries(told).find(([name]) => /(?:^|\/)grad_norm/.test(name))?.[1];
  return Number.isFinite(norm) ? { grad_norm: norm! } : {};
}

/** Names the losses that are computed here, because the server's of that name is another one. */
export function otherLossLines(facts: ServerFacts | null, url: string): string[] {
  const known = facts?.losses ?? policyLosses;
  const others = policyLosses.filter((name) => !known.includes(name));
  if (others.length === 0) return [];
  return [
    `${others.join(', ')}: the Tinker server at ${url} does not compute it as the API says, or not at all. It is computed here from log probabilities, for a third more work a step`,
  ];
}

/** Names the settings that a server takes no notice of, with their values. */
export function ignoredLines(facts: ServerFacts | null, optimizer: OptimizerSpec, url: string): string[] {
  const { beta1, beta2, epsilon, weightDecay } = optimizer;
  const written = {
    'beta1 and beta2': `trainer.beta1 (${beta1}) and beta2 (${beta2})`,
    epsilon: `trainer.epsilon (${epsilon})`,
    weight_decay: `trainer.weight_decay (${weightDecay})`,
  };
  const { ignored = [], unknown = [] } = facts ?? {};
  return [
    ...ignored.map(
      (setting) =>
        `warning: ${written[setting]}: the Tinker server at ${url} takes no notice of it, as tiny steps have shown. Its own value holds.`,
    ),
    ...unknown.map(
      (setting) =>
        `warning: ${written[setting]}: whether the Tinker server at ${url} takes notice of it could not be found out.`,
    ),
  ];
}

/**
 * How the server adds losses up: as it was measured. `loss_reduction` of the run's file must agree, and stands in where
 * nothing could be measured.
 */
export function serverLossOf(
  facts: ServerFacts | null,
  { url, server, reduction }: Pick<TinkerTrainerSpec, 'url' | 'server' | 'reduction'>,
  say: (line: string) => void,
): ServerLoss {
  const measured = facts?.loss ?? null;
  if (measured === null) {
    const assumed = reduction ?? (server === 'tinker' ? 'sum' : 'sequence_mean');
    if (reduction === null && server !== 'tinker')
      say(
        `warning: the Tinker server at ${url} tells neither the norm of a gradient nor a loss, so how it adds losses up could not be measured: "${assumed}" is assumed. [trainer] loss_reduction says otherwise.`,
      );
    return lossBy(assumed);
  }
  if (reduction !== null && reduction !== measured.reduction)
    throw new RatchetError(
      'ConfigInvalid',
      `[trainer] loss_reduction = "${reduction}": the server at ${url} was measured with two rows, and its gradient is that of "${measured.reduction}". Write that, or leave it out.`,
    );
  say(
    `the Tinker server at ${url} adds losses up by "${measured.reduction}"${measured.reduction === 'sum' ? '' : ` over a ${measured.over}`}, as two rows have shown`,
  );
  return measured;
}
