import { readFile, realpath } from 'node:fs/promises';
import path from 'node:path';
import { RatchetError } from '../../core/errors.ts';
import { isEnvironmentFile } from '../../core/names.ts';
import { formatProblems, parseRunConfig } from '../../core/spec/parse-run-config.ts';
import type { CodeRef, RunSpec } from '../../core/spec/run-spec.ts';
import { listEnvironments } from '../environments/load.ts';
import { sha256 } from '../store/file-store.ts';
import { resolveStoreUri } from '../store/index.ts';

export interface LoadOptions {
  /** Relative paths start here. */
  readonly projectFolder: string;
  /** Dotted keys as on the command line. */
  readonly overrides?: Readonly<Record<string, string>>;
  readonly run?: string;
}

export interface LoadedConfig {
  readonly spec: RunSpec;
  readonly warnings: readonly string[];
  /** The step to go on from, where the config asks for one: −1 = the latest. */
  readonly resumeStep: number | null;
}

/** A TOML file as a run spec with every path made absolute. Throws `ConfigInvalid` naming all problems at once. */
export async function loadRunConfig(
  file: string,
  { projectFolder, overrides = {}, run }: LoadOptions,
): Promise<LoadedConfig> {
  const absolute = path.resolve(projectFolder, file);
  const text = await readConfig(absolute, file);
  const parsed = parseRunConfig(text, {
    file,
    overrides,
    knownEnvironments: listEnvironments(),
    ...(run === undefined ? {} : { runName: run }),
  });
  if (!parsed.ok) throw new RatchetError('ConfigInvalid', formatProblems(parsed.problems));
  const { spec, warnings, resumeStep } = parsed;
  const folder = path.dirname(absolute);
  const code = {
    loss: spec.loss.import && (await readCode(spec.loss.import, folder, 'trainer.loss.import')),
    advantage:
      typeof spec.advantage === 'string'
        ? null
        : await readCode(spec.advantage.import, folder, 'trainer.advantage.import'),
    trainer: spec.trainer.kind === 'module' ? await readCode(spec.trainer.import, folder, 'trainer.import') : null,
    inference:
      spec.inference.kind === 'module' ? await readCode(spec.inference.import, folder, 'inference.import') : null,
  };
  const environments = await Promise.all(spec.environments.map((entry, i) => withFile(entry, folder, `env.${i}.id`)));
  const evaluated = await Promise.all(
    (spec.eval?.environments ?? []).map((entry, i) => withFile(entry, folder, `eval.env.${i}.id`)),
  );
  const files = [...environments, ...evaluated].flatMap(({ id, sha256 }) =>
    sha256 === undefined ? [] : { path: id, sha256 },
  );
  const once = new Map(files.map((file) => [file.path, file]));
  return {
    spec: {
      ...spec,
      environments,
      eval: spec.eval && { ...spec.eval, environments: evaluated },
      loss: { ...spec.loss, import: code.loss },
      advantage: code.advantage === null ? spec.advantage : { import: code.advantage },
      trainer: withCode(spec.trainer, code.trainer),
      inference: withCode(spec.inference, code.inference),
      model: resolveModel(spec.model, path.dirname(absolute), projectFolder),
      store: { uri: resolveStoreUri(spec.store.uri, projectFolder) },
    },
    resumeStep,
    warnings: [...warnings, ...[...Object.values(code).filter((ref) => ref !== null), ...once.values()].map(runsCode)],
  };
}

function withCode<Spec extends { readonly kind: string }>(spec: Spec, code: CodeRef | null): Spec {
  return code === null ? spec : { ...spec, import: code };
}

/** An environment that is a file: where it is, and what is in it now. */
async function withFile<Entry extends { readonly id: string }>(
  entry: Entry,
  folder: string,
  key: string,
): Promise<Entry & { readonly sha256?: string }> {
  if (!isEnvironmentFile(entry.id)) return entry;
  const { path: id, sha256 } = await readCode({ path: entry.id, sha256: null }, folder, key);
  return { ...entry, id, ...(sha256 === null ? {} : { sha256 }) };
}

/** Looks at a file of the user's code without running it. A relative path stays in the config's folder, also through links. */
async function readCode({ path: written }: CodeRef, folder: string, key: string): Promise<CodeRef> {
  const absolute = path.resolve(folder, written);
  const refuse = (received: string): RatchetError =>
    new RatchetError(
      'ConfigInvalid',
      `${key}: expected a file with code beside or below the config, or an absolute path; ${received}.`,
    );
  const isInside = path.isAbsolute(written) || isBelow(folder, absolute);
  if (!isInside) throw refuse(`${JSON.stringify(written)} leads out of ${folder}`);
  try {
    if (!path.isAbsolute(written) && !isBelow(await realpath(folder), await realpath(absolute))) {
      throw refuse(`${JSON.stringify(written)} is a link that leads out of ${folder}`);
    }
    return { path: absolute, sha256: sha256(await readFile(absolute)) };
  } catch (cause) {
    if (cause instanceof RatchetError) throw cause;
    throw refuse(`${absolute} cannot be read (${(cause as NodeJS.ErrnoException).code})`);
  }
}

function isBelow(folder: string, file: string): boolean {
  const way = path.relative(folder, file);
  return way !== '..' && !way.startsWith(`..${path.sep}`) && !path.isAbsolute(way);
}

function runsCode({ path: file, sha256: digest }: CodeRef): string {
  return `this run executes code of its own: ${file} (sha256 ${digest?.slice(0, 12)}…). Read it before you start a config that is not yours.`;
}

async function readConfig(absolute: string, file: string): Promise<string> {
  try {
    return await readFile(absolute, 'utf8');
  } catch (cause) {
    const reason = (cause as NodeJS.ErrnoException).code;
    const what =
      reason === 'ENOENT'
        ? 'there is no such file'
        : reason === 'EISDIR'
          ? 'that is a folder'
          : `it cannot be read (${reason})`;
    throw new RatchetError('ConfigInvalid', `${file}: expected a TOML file, but ${what}: ${absolute}`, { cause });
  }
}

/** `preset:NAME` stays; a path becomes absolute, from the config's folder if it begins with a dot. */
function resolveModel(model: string, configFolder: string, projectFolder: string): string {
  if (model.startsWith('preset:') || path.isAbsolute(model)) return model;
  return path.resolve(model.startsWith('.') ? configFolder : projectFolder, model);
}
