import { z } from 'zod';
import type { KeyPath } from '../toml/positions.ts';
import { args, whole } from '../toml/values.ts';
import type { JsonValue, RunSpec } from '../run-spec.ts';
import type { RatchetConfig } from './index.ts';
import { trainerTraits } from '../../core/kinds/trainers.ts';
import { insteadOfTorch } from './torch.ts';

/**
 * GPUs, vLLM arguments and settings of PyTorch's trainer that the processes of the run do not use. They choose the
 * sampler and the trainer (cli/start/), the vLLM arguments name the parsers of the model's answers, and the settings of
 * PyTorch count in estimates of its memory.
 */
export const RequestedSpec = z.strictObject({
  trainerGpus: whole(1).nullable().default(null),
  inferenceGpus: whole(0).nullable().default(null),
  vllm: args().default({}),
  torch: args().default({}),
});
export type RequestedSpec = z.infer<typeof RequestedSpec>;

export function requestedSpec({ trainer, inference }: RatchetConfig): { requested?: RequestedSpec } {
  const { hasRanks } = trainerTraits(trainer);
  const isUsed = hasRanks || (trainer.provider === 'cuda' && trainer.gpus === 1);
  const { gpus, vllm = {} } = inference.kind === 'vllm' ? {} : inference;
  return withRequested({
    trainerGpus: isUsed ? null : (trainer.gpus ?? null),
    inferenceGpus: gpus ?? null,
    vllm,
    torch: hasRanks ? {} : ofTorch(trainer),
  });
}

function ofTorch(trainer: RatchetConfig['trainer']): Record<string, JsonValue> {
  const keys = Object.keys(insteadOfTorch) as (keyof typeof insteadOfTorch)[];
  return Object.fromEntries(
    keys.flatMap((key) => {
      const value = trainer[key];
      return value === undefined || value === insteadOfTorch[key].met ? [] : [[key, value]];
    }),
  );
}

/** Left out if it requests nothing. */
export function withRequested(requested: RequestedSpec): { requested?: RequestedSpec } {
  const { trainerGpus, inferenceGpus, vllm, torch } = requested;
  const isNone = trainerGpus === null && inferenceGpus === null;
  return isNone && Object.keys({ ...vllm, ...torch }).length === 0 ? {} : { requested };
}

/** Warnings of requests that neither the trainer nor the sampler of the run uses. `writtenAt`: undefined of a dialect's default. */
export function unusedRequests(
  { requested, trainer, inference }: Pick<RunSpec, 'requested' | 'trainer' | 'inference'>,
  writtenAt: (path: KeyPath) => string | undefined,
): { readonly trainer: string[]; readonly inference: string[]; readonly settings: string[] } {
  const { trainerGpus = null, inferenceGpus = null, vllm = {}, torch = {} } = requested ?? {};
  const decides =
    'provider' in trainer
      ? 'the embedded engine trains on the CPU, or on one GPU with provider = "cuda"; PyTorch on several with kind = "torch"'
      : `trainer.kind = "${trainer.kind}" decides`;
  const ofVllm = `for a vLLM that is started (--inference.kind vllm); here inference.kind = "${inference.kind}"`;
  const ofTorch = `for PyTorch (--trainer.kind torch); here trainer.kind = "${trainer.kind}"`;
  const without = (names: readonly string[], why: string): string[] =>
    names.length === 0 ? [] : [`${names.join(', ')} without effect: ${why}`];
  const written = (keys: object, ...table: KeyPath): string[] =>
    Object.keys(keys).flatMap((key) => writtenAt([...table, key]) ?? []);
  return {
    trainer: trainerGpus === null ? [] : [`trainer.gpus = ${trainerGpus} has no effect: ${decides}`],
    inference: inferenceGpus === null ? [] : [`inference.gpus = ${inferenceGpus} has no effect: ${ofVllm}`],
    settings: [...without(written(vllm, 'inference', 'vllm'), ofVllm), ...without(written(torch, 'trainer'), ofTorch)],
  };
}
