import { readFile } from 'node:fs/promises';
import path from 'node:path';
import { RatchetError } from '../../core/errors.ts';
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
  };
  return {
    spec: {
      ...spec,
      loss: { ...spec.loss, import: code.loss },
      advantage: code.advantage === null ? spec.advantage : { import: code.advantage },
      model: resolveModel(spec.model, path.dirname(absolute), projectFolder),
      store: { uri: resolveStoreUri(spec.store.uri, projectFolder) },
    },
    resumeStep,
    warnings: [...warnings, ...[code.loss, code.advantage].filter((ref) => ref !== null).map(runsCode)],
  };
}

/** Looks at a file of the user's code without running it. A relative path stays in the config's folder. */
async function readCode({ path: written }: CodeRef, folder: string, key: string): Promise<CodeRef> {
  const absolute = path.resolve(folder, written);
  const refuse = (received: string): RatchetError =>
    new RatchetError(
      'ConfigInvalid',
      `${key}: expected a file with code beside or below the config, or an absolute path; ${received}.`,
    );
  if (!path.isAbsolute(written) && path.relative(folder, absolute).startsWith('..')) {
    throw refuse(`${JSON.stringify(written)} leads out of ${folder}`);
  }
  try {
    return { path: absolute, sha256: sha256(await readFile(absolute)) };
  } catch (cause) {
    throw refuse(`${absolute} cannot be read (${(cause as NodeJS.ErrnoException).code})`);
  }
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
