import type { DryRun, EmbeddedMemory, GpuMemory } from '../../load/checks/dry-run.ts';
import { startedWith } from '../../core/kinds/inference.ts';
import { moneyText } from '../../core/rl/cost.ts';
import { budgetKeys } from '../../core/settings/budgets.ts';
import { isHubId, namedServers, trainerName } from '../../core/names.ts';
import { gpuSettingsOf, samplesOn } from '../../config/gpu-settings.ts';
import { codeOf, type RunSpec } from '../../config/run-spec.ts';

/** Resources that a run would need, as text. */
export function describeDryRun(spec: RunSpec, { plan, freeBytes, memory }: DryRun): string[] {
  const { disk } = plan;
  const stored = disk.rollouts + disk.batches + (disk.checkpoints ?? 0);
  const checkpoints = disk.checkpoints === null ? 'unknown' : bytes(disk.checkpoints);
  return [
    'plan (nothing was started):',
    ...processes(spec),
    ...steps(spec, plan),
    ...cost(spec, plan),
    ...(spec.eval
      ? [
          `  evaluations   ${plan.evaluations} of ${plan.evalRollouts === null ? 'all held-out examples, whose number is not known here' : `${count(plan.evalRollouts)} rollouts`}`,
        ]
      : []),
    `  disk          at most ${bytes(stored)}${disk.checkpoints === null ? ' and the checkpoints' : ''}: ${disk.checkpointCount} checkpoints ${checkpoints}, rollouts ${bytes(disk.rollouts)}, batches ${bytes(disk.batches)}${free(freeBytes, stored)}`,
    ...(memory === null ? unknownModel(spec) : memory.kind === 'embedded' ? embedded(memory) : onGpus(memory)),
  ];
}

function steps({ data, rolloutsPerExample }: RunSpec, plan: DryRun['plan']): string[] {
  const { tokens } = plan;
  if (data && plan.steps > 0) {
    const { batchSize, seqLen } = data;
    return [`  steps         ${plan.steps}, each ${batchSize} sequences of ${seqLen} tokens at most`];
  }
  return [
    plan.steps === 0
      ? '  steps         none: supervised training alone'
      : `  steps         ${plan.steps}, each ${plan.groupsPerStep} groups × ${rolloutsPerExample} = ${plan.rolloutsPerStep} rollouts; a sampling round has ${plan.sampledPerStep}, filters may ask for more`,
    `  rollouts      ${count(plan.steps * plan.rolloutsPerStep)} trained`,
    `  tokens        ${count(tokens.perTurn)} a turn at most; sampled at most ${count(tokens.perStep)} a step and ${count(tokens.perRun)} in all, where a rollout has one turn`,
  ];
}

/** What the run may cost at most: by its budget, or else by the tokens of its plan. */
function cost({ budget, cost: prices }: RunSpec, { tokens }: DryRun['plan']): string[] {
  const limits = Object.entries(budget ?? {}).flatMap(([unit, limit]) =>
    limit === null ? [] : [`${budgetKeys[unit as keyof typeof budgetKeys]} ${limit.toLocaleString('en')}`],
  );
  if (limits.length > 0) return [`  cost          at most, by [budget]: ${limits.join(', ')}; then the run pauses`];
  if (!prices?.completion) return [];
  const most = moneyText((tokens.perRun * prices.completion) / 1e6, prices.currency);
  return [
    `  cost          sampled tokens at most ${most} in all, where a rollout has one turn; [budget] money limits it`,
  ];
}

function free(freeBytes: number | null, stored: number): string {
  if (freeBytes === null) return '';
  const isShort = stored > freeBytes;
  return `; ${bytes(freeBytes)} are free${isShort ? ', which may not be enough' : ''}`;
}

function processes(spec: RunSpec): string[] {
  const { trainerGpus, inferenceGpus } = gpuSettingsOf(spec);
  const { trainer, inference } = spec;
  const samples = namedServers(inference) ?? codeOf(inference)?.path ?? `one policy server on ${samplesOn(spec)}`;
  const here = isHubId(spec.model)
    ? 'nothing, since the model is not here (see below)'
    : `trained by ${trainerName(trainer)}, sampled by ${samples}`;
  const lines = [
    '  workers       orchestrator, 1 GPU worker, 1 rollout worker, metrics (ratchet dev has more: --gpu-workers, --rollout-workers)',
    `  here          ${here}`,
  ];
  if (trainerGpus === null && inferenceGpus === null) return lines;
  return [
    ...lines,
    `  GPUs          ${trainerGpus ?? 0} to train and ${inferenceGpus ?? 0} to sample are asked for${startedWith(inference) === 'vllm' ? '; a vLLM that is started uses its own' : '; a vLLM uses them ([inference] kind = "vllm"), PyTorch the others ([trainer] kind = "torch")'}`,
  ];
}

function unknownModel({ model }: RunSpec): string[] {
  return [`  memory        unknown model ${model}: give its config.json with --model-config FILE`];
}

function embedded({ model, parameterCount, copies, ...memory }: EmbeddedMemory): string[] {
  return [
    `  memory        ${model}, ${count(parameterCount)} parameters, on this machine in float32`,
    `    trainer     ${bytes(memory.trainerBytes)}: ${copies} copies (weights, gradients, moments); activations come on top`,
    `    server      ${memory.serverBytes === null ? '' : `at most ${bytes(memory.serverBytes)} ([inference] memory_gb), `}${bytes(memory.keyValueBytesPerToken)} of keys and values a token`,
  ];
}

function onGpus({ model, parameterCount, weightBytes }: GpuMemory): string[] {
  return [
    `  memory        ${model}, ${count(parameterCount)} parameters, ${bytes(weightBytes)} in bfloat16; what an engine takes of a GPU beside them is its own`,
  ];
}

function bytes(size: number): string {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let [value, unit] = [size, 0];
  while (value >= 1024 && unit < units.length - 1) [value, unit] = [value / 1024, unit + 1];
  return `${value >= 100 || unit === 0 ? value.toFixed(0) : value.toFixed(1)} ${units[unit]}`;
}

function count(value: number): string {
  if (value >= 1e9) return `${(value / 1e9).toFixed(2)} billion`;
  if (value >= 1e6) return `${(value / 1e6).toFixed(2)} million`;
  return String(value);
}
