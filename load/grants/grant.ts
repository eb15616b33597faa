import { existsSync } from 'node:fs';
import path from 'node:path';
import { codeOfAdvantage } from '../../core/rl/learning/advantage.ts';
import type { EvaluatedEnvironment, EvaluatedModel, EvaluatedServer } from '../../core/eval/evaluation.ts';
import { isEnvironmentFile, weightsAgentKeyVar } from '../../core/names.ts';
import type { PromptSearchInput } from '../../core/gepa/prompt-search.ts';
import { codeOf, type InferenceSpec, keptRows, type RunSpec } from '../../config/run-spec.ts';
import { isOthers, realOr } from '../../host/file-owners.ts';
import { grantByTrustedFile, grantedLines, grants, linesOfServer, rootsIn, writeGrants } from '../../host/grants.ts';
import { digestLine, isOfProject, isOtherThanGranted, isOwnStore } from '../../host/trusted-files.ts';
import { asNamed } from '../../backends/environments/named.ts';
import { serverKeysOf } from '../../backends/inference/model-server.ts';
import { linesOfProvider } from '../../backends/sandboxes/named.ts';
import { sinkServers } from '../../backends/metrics/sinks.ts';
import { webhookServers } from '../../backends/webhook.ts';
import { linesOfStore } from '../../store/index.ts';

/**
 * Records what a user has named on a command line and workers of our own server would not accept from Temporal
 * (`host/trusted-files.ts`): files outside the project, environments with their arguments, Python without a sandbox,
 * servers with the names of their keys, and stores that are buckets or folders that others can write.
 */
export function grantNamed(projectFolder: string, lines: readonly string[]): void {
  const wanted = lines
    .map((line) => (isNoFile(line) ? line : path.resolve(projectFolder, line)))
    .filter((line) => isNoFile(line) || (!isOfProject(line, projectFolder) && existsSync(line)));
  writeGrants(projectFolder, [...unlessOwnStores(wanted, projectFolder), ...digestsOf(wanted, projectFolder)]);
}

/** Without the folders that are taken as stores anyway. */
function unlessOwnStores(lines: readonly string[], projectFolder: string): string[] {
  const start = `${grants.store}${path.sep}`;
  const folderIn = (line: string): string => line.slice(grants.store.length);
  return lines.filter((line) => !line.startsWith(start) || !isOwnStore(folderIn(line), projectFolder));
}

/** Digest lines for files that others can change or that already have one. A later check then notices a change. */
function digestsOf(wanted: readonly string[], projectFolder: string): string[] {
  const lines = grantedLines(projectFolder);
  return wanted.flatMap((file) => {
    const real = isNoFile(file) ? null : realOr(file, null);
    if (real === null || !(isOthers(real) || isOtherThanGranted(real, lines))) return [];
    return digestLine(real) ?? [];
  });
}

export function isNoFile(line: string): boolean {
  const { noSandbox, ...starts } = grants;
  return line === noSandbox || Object.values(starts).some((start) => line.startsWith(start));
}

/**
 * The same for a worker, from a trusted file that it has just read. `isAsItStands`: nothing was laid over the file.
 * Grants no files, since others may be able to write where those are.
 */
export function grantByFile(named: readonly string[], isAsItStands: boolean): void {
  const [projectFolder] = rootsIn(process.env);
  if (!isAsItStands || projectFolder === undefined) return;
  const lines = named.filter((line) => isNoFile(line) && line !== grants.noSandbox);
  grantByTrustedFile(unlessOwnStores(lines, projectFolder));
}

/** Separates lines that let a server receive a key from all others. */
export function keysApart(lines: readonly string[]): { readonly keys: string[]; readonly rest: string[] } {
  const isKey = (line: string): boolean => line.startsWith(grants.key);
  return { keys: lines.filter(isKey), rest: lines.filter((line) => !isKey(line)) };
}

/** Code, servers and keys that sampling a run's version uses. */
export function namedByInference({ inference }: Pick<RunSpec, 'inference'>): string[] {
  const file = ('endpoints' in inference && inference.endpoints?.path) || [];
  return [codeOf(inference)?.path ?? [], file, inferenceServers(inference)].flat();
}

/** Names of everything that a run executes, or reads and keeps, for which a grant is required. */
export function namedIn(spec: RunSpec): string[] {
  const { loss, advantage, trainer, inference, teacher } = spec;
  const code = [loss.import, codeOfAdvantage(advantage), codeOf(trainer), codeOf(inference)];
  const programs = [
    'vllm' in inference ? inference.vllm.program : null,
    trainer.kind === 'prime-rl' ? trainer.program : null,
  ];
  return [
    ...code.flatMap((ref) => ref?.path ?? []),
    ...programs.flatMap((program) => (program?.includes('/') ? [program] : [])),
    ...[keptRows(spec)?.path, spec.chatTemplate?.path].filter((file) => typeof file === 'string'),
    ...[inference, teacher].flatMap((pool) => (pool && 'endpoints' in pool && pool.endpoints?.path) || []),
    ...namedByEnvironments(environmentsOf(spec)),
    ...serversIn(spec),
    ...sinksIn(spec),
    ...linesOfStore(spec.store.uri),
    ...linesOfModels([spec.model, teacher?.folder ?? null]),
  ];
}

/** Folders of models outside the project, which workers may read. */
export function linesOfModels(models: readonly (string | null)[]): string[] {
  return models.flatMap((model) => (model !== null && path.isAbsolute(model) ? [`${grants.model}${model}`] : []));
}

/** Servers that a run asks, with their keys. Those of an endpoints file are named by that. */
export function serversIn({ inference, teacher, gepa, trainer }: RunSpec): string[] {
  const of = (urls: readonly string[], keys: readonly string[]) => urls.flatMap((url) => linesOfServer({ url, keys }));
  return [
    ...inferenceServers(inference),
    ...('url' in trainer ? of([trainer.url], serverKeysOf(trainer)) : []),
    ...(teacher ? of(teacher.urls, serverKeysOf({ apiKeyVar: teacher.apiKeyVar })) : []),
    ...(gepa ? of([gepa.url], serverKeysOf(gepa)) : []),
  ];
}

/** Servers that receive its metrics and notices. Not part of {@link serversIn}: evaluating a run sends them nothing. */
export function sinksIn(spec: RunSpec): string[] {
  return sinkServers(spec).flatMap(linesOfServer);
}

/** Grant lines for a run's webhook and for the secret that signs its notices. */
export function namedByNotices({ notify }: Pick<RunSpec, 'notify'>): string[] {
  return webhookServers(notify).flatMap(linesOfServer);
}

function inferenceServers(spec: InferenceSpec): string[] {
  if (!('url' in spec)) return [];
  const keys = serverKeysOf(spec);
  const agent = 'vllm' in spec ? spec.vllm.weightsAgent : null;
  return [
    ...[spec.url ?? []].flat().flatMap((url) => linesOfServer({ url, keys })),
    ...(agent === null ? [] : linesOfServer({ url: agent, keys: [weightsAgentKeyVar] })),
  ];
}

/** Servers and keys of an evaluated model. The run itself names those of its versions. */
export function namedByModel(model: EvaluatedModel): string[] {
  return model.kind === 'endpoint' ? namedByServers(model.servers) : linesOfStore(model.run.store);
}

export function namedByServers(servers: readonly EvaluatedServer[]): string[] {
  return servers.flatMap(({ baseUrl: url, apiKeyVar }) => linesOfServer({ url, keys: serverKeysOf({ apiKeyVar }) }));
}

/** Environments of a search, and the servers it asks. */
export function namedBySearch({
  environments,
  model,
  reflection,
}: Pick<PromptSearchInput, 'environments' | 'model' | 'reflection'>): string[] {
  return [...namedByEnvironments(environments), ...namedByModel(model), ...namedByServers(reflection.servers)];
}

/** Those that it trains on, and those that it is evaluated on. */
export function environmentsOf({ environments, eval: evaluation }: RunSpec): Entry[] {
  return [...environments, ...(evaluation?.environments ?? [])];
}

type Entry = Pick<EvaluatedEnvironment, 'id' | 'args' | 'python' | 'variables' | 'agent' | 'extra' | 'program'>;

export function namedByEnvironments(environments: readonly Entry[]): string[] {
  return environments.flatMap((entry) => {
    const { id, args, python, variables } = entry;
    return [
      ...(isEnvironmentFile(id) ? [id] : []),
      ...(python === undefined ? [] : [python.folder]),
      ...(variables?.files ?? []),
      ...(args['sandbox'] === 'none' ? [grants.noSandbox] : []),
      ...(typeof args['python'] === 'string' && args['python'].includes('/') ? [args['python']] : []),
      ...(entry.program ? namedByProgram(entry.program) : []),
      ...asNamed(entry),
    ];
  });
}

/** Files of an agent, and the servers that it and its judge ask. */
function namedByProgram({ tasks, evalTasks, sandbox, score, models }: NonNullable<Entry['program']>): string[] {
  const sources = [tasks, evalTasks].filter((source) => source !== null && source.hub === undefined);
  const files = [...sources, sandbox.files, score.files, score.function].flatMap((file) => file?.path ?? []);
  const servers = [...models, ...(score.judge ? [score.judge] : [])];
  return [
    ...files,
    ...linesOfProvider(sandbox.pool.provider),
    ...servers.flatMap(({ baseUrl: url, apiKeyVar }) => linesOfServer({ url, keys: serverKeysOf({ apiKeyVar }) })),
  ];
}
