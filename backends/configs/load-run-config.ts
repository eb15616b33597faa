import { readFile } from 'node:fs/promises';
import path from 'node:path';
import { RatchetError } from '../../core/errors.ts';
import { formatProblems, parseRunConfig } from '../../core/spec/parse-run-config.ts';
import type { RunSpec } from '../../core/spec/run-spec.ts';
import { listEnvironments } from '../environments/load.ts';
import { resolveStoreUri } from '../store/index.ts';

export interface LoadOptions {
  /** Relative paths start here. */
  readonly projectFolder: string;
  /** Dotted keys as on the command line. */
  readonly overrides?: Readonly<Record<string, string>>;
  readonly run?: string;
}

/** A TOML file as a run spec with every path made absolute. Throws `ConfigInvalid` naming all problems at once. */
export async function loadRunConfig(
  file: string,
  { projectFolder, overrides = {}, run }: LoadOptions,
): Promise<{ spec: RunSpec; warnings: readonly string[] }> {
  const absolute = path.resolve(projectFolder, file);
  const text = await readConfig(absolute, file);
  const parsed = parseRunConfig(text, {
    file,
    overrides,
    knownEnvironments: listEnvironments(),
    ...(run === undefined ? {} : { runName: run }),
  });
  if (!parsed.ok) throw new RatchetError('ConfigInvalid', formatProblems(parsed.problems));
  const { spec, warnings } = parsed;
  return {
    spec: {
      ...spec,
      model: resolveModel(spec.model, path.dirname(absolute), projectFolder),
      store: { uri: resolveStoreUri(spec.store.uri, projectFolder) },
    },
    warnings,
  };
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
