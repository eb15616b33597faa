import { trainerTraits } from '../../core/kinds/trainers.ts';
import { lossTraits } from '../../core/rl/losses.ts';
import { isRoleAdvantage } from '../../core/rl/rollout/agents.ts';
import type { ServerMemory } from '../../engine/sample/server-memory.ts';
import { differInGroups, groupSizeOf } from '../../core/rl/learning/selection.ts';
import { levelOf } from '../../core/rl/sampling/window.ts';
import { type Obstacle, type RunFileReport, runsOfFile } from '../../load/checks/examine-run-file.ts';
import type { ModelSize, TrainingMemory } from '../../load/checks/check-model.ts';
import { showStoreUri } from '../../store/store-uri.ts';
import { modelName, namedServers, trainerName } from '../../core/names.ts';
import { formatPlace, formatProblems, type ReadAs } from '../../config/toml/problems.ts';
import type { Advice } from '../../config/run-config.ts';
import { withOlderNamesTogether } from '../../config/toml/older-names.ts';
import { codeOf, type PythonEnvironmentSpec, type RowsSpec, type RunSpec } from '../../config/run-spec.ts';
import { alternativeLine } from '../start/read-as.ts';

/** Report on a run file for people: its problems, or its meaning, then remarks. */
export function describeRunFile(report: RunFileReport): string[] {
  const { file, readAs, problems, loaded } = report;
  if (loaded === null) {
    return [
      ...(readAs ? [`${file}: read as ${readLine(readAs)}`] : []),
      ...formatProblems(problems).split('\n'),
      ...remarks(report),
    ];
  }
  return [
    `${file} is a run named ${loaded.spec.name}, read as ${readLine(loaded.readAs)}:`,
    ...loaded.readAs.alternatives.map((other) => `  or            ${alternativeLine(other)}`),
    ...summary(loaded.spec, report),
    ...remarks(report),
  ];
}

function readLine({ title, because }: ReadAs): string {
  return because === '--dialect' ? `${title} (--dialect)` : `${title} (by ${because})`;
}

/** Remarks of any report: warnings, obstacles, advice. */
function remarks({ warnings, obstacles, advice, notImported }: Omit<RunFileReport, 'file'>): string[] {
  return [
    ...section(
      'not checked, since reading a run file runs no code that it names (--import does; read that code first):',
      notImported.map(({ name, runs, unchecked }) => `environment ${name}: ${unchecked}. It would run ${runs}`),
    ),
    ...withOlderNamesTogether(warnings).map((warning) => `warning: ${warning}`),
    ...section('in the way of training here:', obstacles.flatMap(obstacleLines)),
    ...section('advice (rules of thumb, no errors):', advice.flatMap(adviceLines)),
  ];
}

function section(title: string, lines: readonly string[]): string[] {
  return lines.length === 0 ? [] : [title, ...lines.map((line) => `  ${line}`)];
}

export function obstacleLines({ about, says, remedies }: Obstacle): string[] {
  return [`${about}: ${says}`, ...remedies.map((remedy) => `  → ${remedy}`)];
}

function adviceLines({ value, range, why, source, ...place }: Advice): string[] {
  const isDefault = place.line === null && place.file !== 'command line';
  const where = isDefault ? place.path : formatPlace(place);
  return [`${where} = ${value}${isDefault ? ' (default)' : ''}: usually ${range}`, `    ${why} (${source})`];
}

function summary(spec: RunSpec, { model, environments, notImported }: RunFileReport): string[] {
  const isLeft = (entry: Parameters<typeof runsOfFile>[0]): boolean =>
    notImported.length > 0 && runsOfFile(entry) !== null;
  const size = model ? `, ${millions(model.parameterCount)} parameters` : '';
  const names = [
    ...spec.environments.map((entry) => ['environment   ', entry] as const),
    ...(spec.eval?.environments ?? []).map((entry) => ['eval          ', entry] as const),
  ];
  return [
    `  model         ${modelName(spec.model)}${size}`,
    ...names.map(([label, entry]) => {
      const { name, id, python } = entry;
      return `  ${label}${name}${id === name ? '' : ` (${id})`}${python ? packageOf(python) : environments.has(name) ? '' : isLeft(entry) ? ', not imported' : ', not here'}`;
    }),
    spec.data && spec.maxSteps > 0
      ? `  each step     ${rowsLine(spec.data)}, ${spec.maxSteps} steps`
      : spec.maxSteps === 0
        ? '  each step     none: supervised training alone'
        : `  each step     ${batchLine(spec)}, ${spec.maxSteps} steps, async level ${spec.maxAsyncLevel}${sampledBy(spec.inference)}`,
    ...oldestLine(spec),
    `  trains        ${trainedPart(spec, model?.adapterCount ?? null)}`,
    ...memoryLines(model),
    `  loss          ${lossLine(spec)}`,
    ...otherLosses(spec),
    ...(spec.temperatureSchedule ? [`  temperature   ${temperatureLine(spec)}`] : []),
    ...(spec.teacher ? [`  teacher       ${teacherLine(spec.teacher)}`] : []),
    `  warm-up       ${warmUpLine(spec)}`,
    ...(spec.gepa ? [`  branches      ${branchLine(spec.gepa)}`] : []),
    `  checkpoints   every ${spec.checkpoints.interval} steps in ${showStoreUri(spec.store.uri)}${spec.name}/`,
    ...metricsLine(spec),
  ];
}

/** Least duration of steps under the bound on age, for runs that sample ahead. */
function oldestLine(spec: RunSpec): string[] {
  const { maxSteps, maxOffPolicySteps: most, data } = spec;
  if (data || maxSteps === 0 || levelOf(spec) === 0) return [];
  return [
    `  oldest        ${most} version${most === 1 ? '' : 's'}: a step takes 1/${most} of what all but 2 % of the groups take, at least; with a higher max_off_policy_steps it may be shorter`,
  ];
}

/** Describes the most memory that the trainer's process and the policy server's process need. */
function memoryLines(model: ModelSize | null): string[] {
  const { training = null, sampling = null } = model ?? {};
  const lines = [
    ...(training ? [trainingMemoryLine(training)] : []),
    ...(sampling ? [samplingMemoryLine(sampling)] : []),
  ];
  return lines.map((line, i) => `  ${i === 0 ? 'memory' : '      '}        ${line}`);
}

function samplingMemoryLine({ budgetBytes, weightBytesMax, versionBytes, limits }: ServerMemory): string {
  const versions = Math.round(weightBytesMax / versionBytes);
  const named = versions === 1 ? 'a version' : `${versions} versions`;
  const work = limits.keyValueBytesMax + limits.promptBytesMax;
  return `the policy server takes at most ${gibibytes(budgetBytes)} ([inference] memory_gb = ${Math.round(budgetBytes / 1e7) / 100}): ${named} ${gibibytes(weightBytesMax)}, keys and values ${gibibytes(work)}, its process and a run’s activations ${gibibytes(budgetBytes - weightBytesMax - work)}`;
}

function trainingMemoryLine({ positions, weightBytes, activationBytes, logitBytes }: TrainingMemory): string {
  const total = weightBytes + activationBytes + logitBytes;
  return `training takes at most ${gibibytes(total)}: weights and moments ${gibibytes(weightBytes)}, a micro-batch of ${positions} tokens ${gibibytes(activationBytes)}, logits ${gibibytes(logitBytes)}`;
}

function gibibytes(bytes: number): string {
  const size = bytes / 2 ** 30;
  return `${size >= 0.1 ? size.toFixed(1) : size.toPrecision(1)} GiB`;
}

/** Source of the log probabilities or rollouts that the policy learns from. */
function teacherLine({ role, folder, model, urls, endpoints, demonstration }: NonNullable<RunSpec['teacher']>): string {
  const does = role === 'samples' ? 'plays the rollouts' : 'scores what the policy says';
  if (demonstration) return `the policy itself, told the "${demonstration.key}" of an example; ${does}`;
  const named = model ?? folder ?? `the alias ${endpoints?.id ?? ''}`;
  const at = urls.length > 0 ? ` at ${urls.join(', ')}` : folder === null ? '' : ', held by the policy servers';
  return `${named}${at}; ${does}`;
}

/** Trackers that receive metrics besides the run's folder; no line without one. */
function metricsLine({ name, wandb, mlflow }: RunSpec): string[] {
  const to = [
    ...(wandb && wandb.mode !== 'disabled' ? [`W&B, project ${wandb.project ?? 'ratchet'}`] : []),
    ...(mlflow
      ? [`MLflow, run ${mlflow.runName ?? name}${mlflow.trackingUri ? ` at ${mlflow.trackingUri}` : ''}`]
      : []),
  ];
  return to.length === 0 ? [] : [`  metrics       to ${to.join(' and ')}`];
}

/** Composition of a supervised training step. */
function rowsLine({ rows, batchSize, seqLen }: RowsSpec): string {
  const part = rows.hub ? ` (${rows.hub.subset === null ? '' : `${rows.hub.subset}, `}${rows.hub.split})` : '';
  return `${batchSize} sequences of up to ${seqLen} tokens, packed from rows of ${rows.path}${part}`;
}

function batchLine(spec: RunSpec): string {
  const { batchSize, rolloutsPerExample, tokenBatchSize } = spec;
  if (differInGroups(spec)) {
    const sizes = spec.environments.map(({ name }) => `${groupSizeOf(spec, name)} (${name})`).join(', ');
    return `groups of ${sizes} rollouts until they have ${tokenBatchSize === null ? `${batchSize} rollouts` : `${tokenBatchSize} tokens`}`;
  }
  if (tokenBatchSize === null && isRoleAdvantage(spec.advantage))
    return `groups of ${rolloutsPerExample} episodes until they have ${batchSize} trained agents`;
  if (tokenBatchSize !== null)
    return `groups of ${rolloutsPerExample} rollouts until they have ${tokenBatchSize} tokens`;
  return `${batchSize / rolloutsPerExample} groups × ${rolloutsPerExample} rollouts`;
}

/** Losses that environments add to the run's loss, or replace it with. */
function otherLosses({ environments }: RunSpec): string[] {
  const taught = environments.filter(({ objective }) => objective !== undefined).map(({ name }) => name);
  return [
    ...(taught.length === 0
      ? []
      : [`  distilled     ${taught.join(', ')}, by the teacher alone and over its own tokens`]),
    ...environments.flatMap(({ name, echo }) => {
      const weights = Object.entries(echo ?? {}).map(([role, weight]) => `${role} ${weight}`);
      return weights.length === 0 ? [] : [`  echo          what ${name} says, by cross entropy: ${weights.join(', ')}`];
    }),
  ];
}

function temperatureLine({ temperatureSchedule: schedule, maxSteps, sampling, eval: evaluation }: RunSpec): string {
  const { type, startTemperature, endTemperature, totalSteps } = schedule!;
  const evaluated = evaluation ? `; evaluations without one of their own at ${sampling.temperature}` : '';
  return `${type} from ${startTemperature} to ${endTemperature} over ${totalSteps ?? maxSteps} steps${evaluated}`;
}

/** A high rate ruins a model that can read already, and LoRA does not protect its weights in the warm-up. */
function warmUpLine({ sft, lora, trainer }: RunSpec): string {
  if (!sft) return 'none';
  const rows = sft.data
    ? ` ${sft.dpo ? `pairs (dpo, β ${sft.dpo.beta})` : ''} from ${sft.data.path}`.replace('  ', ' ')
    : '';
  const all =
    lora && trainerTraits(trainer).trains !== 'adapters' ? ', of all weights: the adapters come after it' : '';
  return `${sft.steps} supervised steps of ${sft.batchSize}${rows}, learning rate ${sft.learningRate}${all}`;
}

function branchLine(gepa: NonNullable<RunSpec['gepa']>): string {
  const { interval, atSteps, environments, maxCalls, reflectionModel, adopt } = gepa;
  const when = [
    ...(interval === null ? [] : [`every ${interval} steps`]),
    ...(atSteps.length === 0 ? [] : [`at ${atSteps.join(', ')}`]),
  ];
  const begun = when.length === 0 ? 'when asked for (ratchet gepa branch)' : when.join(' and ');
  return `${begun}: the prompt of ${environments.join(', ')} by ${reflectionModel}, ${maxCalls} calls at most each, adopt = "${adopt}"`;
}

function packageOf({ version, verifiers, api }: PythonEnvironmentSpec): string {
  return `, a Python package, version ${version} (verifiers ${verifiers}, api ${api})`;
}

function sampledBy(inference: RunSpec['inference']): string {
  const by = codeOf(inference)?.path ?? namedServers(inference);
  if (by !== null || !('provider' in inference)) return `, sampled by ${by}`;
  const bits = inference.quantize === undefined ? '' : ` in ${inference.quantize}`;
  return inference.provider === 'cpu' && bits === '' ? '' : `, sampled on ${inference.provider}${bits}`;
}

function trainedPart(
  { lora, numIterations, numMiniBatches, trainer, schedule, optimizer: { type } }: RunSpec,
  adapterCount: number | null,
): string {
  const size = adapterCount === null ? '' : ` of ${millions(adapterCount)} parameters`;
  const what = lora
    ? `adapters${size} (r ${lora.r}, alpha ${lora.alpha}, dropout ${lora.dropout}) on ${lora.targetModules.join(', ')}`
    : 'all weights';
  const passes = numIterations === 1 ? '' : `, ${numIterations} passes over a batch`;
  const parts = numMiniBatches === 1 ? '' : `, in ${numMiniBatches} parts, a step each`;
  const by = 'provider' in trainer ? `on ${trainer.provider}` : `by ${trainerName(trainer)}`;
  const optimizer = type === undefined ? '' : ` with ${type}`;
  return `${what}${optimizer}${passes}${parts}, ${schedule.type} learning rate, ${by}`;
}

function lossLine({ loss, advantage, environments, turnCredit: turns }: RunSpec): string {
  const { type, clipLow, clipHigh, maskLow, maskHigh, klTau, ratioMax } = loss;
  const penalty = klTau === 0 ? '' : `, ${klTau} · (ln ρ)²`;
  const cap = ratioMax === undefined ? '' : `, ratio ≤ ${ratioMax}`;
  const traits = lossTraits(type);
  const row = traits.comparesRows ? ' of a row' : '';
  const masks = maskLow !== 0 || maskHigh !== null;
  const bounds = {
    cap: `, ratio ≤ ${clipHigh}`,
    clip: `, ratio${row} from ${clipLow} to ${clipHigh}`,
    mask: masks ? `, tokens of a ratio from ${maskLow} to ${maskHigh ?? '∞'}` : '',
    move: `, tokens whose probability moved from −${maskLow} to ${maskHigh ?? '∞'}`,
    none: '',
  }[traits.bounds ?? 'none'];
  const code = loss.import ? ` ${loss.import.path}` : '';
  const kind = advantageWords(advantage);
  const others = environments.flatMap(({ name, advantage: own }) => (own ? [`${own} of ${name}`] : []));
  const apart = others.length === 0 ? '' : ` (${others.join(', ')})`;
  const credit = turns
    ? `, of turns by ${turns.by}${turns.discount === 1 ? '' : `, discounted by ${turns.discount}`}`
    : '';
  const compared = loss.oldLogprobs === 'trainer' ? ', ratios to the weights that a step begins from' : '';
  const bonus = loss.entropyCoef === undefined ? '' : `, less ${loss.entropyCoef} · entropy`;
  const corrected = correctionPart(loss.correction);
  if (type === 'cross_entropy') return `${type}, by ${loss.aggregation}`;
  return `${type}${code}${bounds}${cap}${penalty}${bonus}${compared}, by ${loss.aggregation}; advantage ${kind}${apart}${credit}${corrected}`;
}

function advantageWords(advantage: RunSpec['advantage']): string {
  if (typeof advantage === 'string') return advantage;
  if ('import' in advantage) return `custom ${advantage.import.path}`;
  const counted = 'each trained agent of an episode is a rollout of the batch';
  return advantage.type === 'rae'
    ? `rae: reward − running mean of the agent’s role, which keeps ${advantage.decay} of itself; ${counted}`
    : `hierarchical_grpo: ${advantage.episodeAgents.join(', ')} compared within an episode, other roles over the group; ${counted}`;
}

/** Settings that differ from the default weight, which is the token's own ratio, at most 2. */
function correctionPart(correction: RunSpec['loss']['correction']): string {
  const { weight, weightMin, weightMax, divergenceMask = {}, ...masks } = correction;
  const masked = Object.entries(masks).flatMap(([name, bounds]) =>
    bounds === null ? [] : [`${name.replace('Mask', '')} ratios from ${bounds[0]} to ${bounds[1]}`],
  );
  const cut = `${weightMin > 0 ? `${weightMin} to ` : '≤ '}${weightMax}`;
  const said = [
    ...(weight === 'token' && cut === '≤ 2'
      ? []
      : [weight === 'none' ? 'no weights' : `weights of a ${weight} ${cut}`]),
    ...masked,
    ...Object.entries(divergenceMask).map(([name, most]) => `${name} ≤ ${most}`),
  ];
  return said.length === 0 ? '' : `; corrected by ${said.join(', ')}`;
}

function millions(count: number): string {
  return count >= 1e9 ? `${(count / 1e9).toFixed(2)} billion` : `${(count / 1e6).toFixed(2)} M`;
}
