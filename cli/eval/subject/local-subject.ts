import { existsSync } from 'node:fs';
import path from 'node:path';
import { RatchetError } from '../../../core/errors.ts';
import type { JsonValue } from '../../../config/run-spec.ts';
import type { LoadedEvaluations, PlannedEvaluation } from '../../../load/evaluations/load-evaluations.ts';
import { isModelFolder, nameOfFolder, type ServedModel, serveModel } from './local-model.ts';
import { folderOfPolicy } from '../../stored/open-version.ts';
import { versionOfRun } from './version-of-run.ts';
import type { EvalRunOptions } from '../run-options.ts';

/** A local model's server does not run yet, and a run has its own: neither needs an API. */
export async function withoutModel(
  settings: Record<string, JsonValue>,
  options: EvalRunOptions,
): Promise<Record<string, JsonValue>> {
  const folder = options.run === undefined ? localFolder(options) : null;
  if (options.run === undefined && folder === null) return settings;
  if (settings['api_base_url'] !== undefined || settings['provider'] !== undefined) {
    throw new RatchetError(
      'ConfigInvalid',
      `${options.run === undefined ? 'a folder with a model' : '--run'} is evaluated on servers of this machine: -b and -p name others. Leave one of them out.`,
    );
  }
  // The policy server itself refuses a folder without a model, and says what it lacks.
  const named = folder !== null && isModelFolder(folder) ? await nameOfFolder(folder) : (folder ?? options.run!);
  return { ...settings, model: path.basename(named), provider: 'local' };
}

/** Folder to serve: from `--serve FOLDER`, or from `-m FOLDER` without another provider. */
function localFolder({ serve, model, apiBaseUrl, provider }: EvalRunOptions): string | null {
  if (typeof serve === 'string') return serve;
  if (model === undefined || apiBaseUrl !== undefined || provider !== undefined) return null;
  if (isModelFolder(model)) return model;
  if (!/^(\.{0,2}\/|~\/)/.test(model)) return null;
  throw new RatchetError(
    'ConfigInvalid',
    `-m ${model}: expected a folder with a model (config.json and safetensors); ${existsSync(model) ? 'there is no config.json in it' : `there is no ${path.resolve(model)}`}.`,
  );
}

export async function serve(
  options: EvalRunOptions,
  settings: Record<string, JsonValue>,
  loaded: LoadedEvaluations,
  around: { readonly projectFolder: string; readonly log: (line: string) => void },
): Promise<ServedModel | null> {
  const name = loaded.evaluations[0]!.input.model.model;
  if (options.run !== undefined) {
    if (options.serve === undefined) return null;
    const version = await versionOfRun(options.run, { step: options.step, store: options.store, sampling: {} });
    return serveModel(await folderOfPolicy(version.run, version.policy), name, around);
  }
  const folder = localFolder(options);
  if (folder !== null) return serveModel(folder, name, around);
  if (options.serve === undefined) return null;
  const said = settings['model'] === undefined ? '' : `, and -m ${JSON.stringify(settings['model'])} is none`;
  throw new RatchetError(
    'ConfigInvalid',
    `--serve: expected a folder with a model (config.json and safetensors)${said}; or --run RUN with --step N.`,
  );
}

export function askedAt(one: PlannedEvaluation, { url, model }: ServedModel): PlannedEvaluation {
  const { model: before } = one.input;
  if (before.kind !== 'endpoint') return one;
  const servers = [{ model, baseUrl: url, apiKeyVar: null, headers: {} }];
  return { ...one, input: { ...one.input, model: { ...before, model, servers } } };
}
