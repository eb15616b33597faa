import { existsSync } from 'node:fs';
import path from 'node:path';
import { isKeptFromEnvironments } from '../../core/child-environment.ts';
import { environmentTraits } from '../../core/kinds/environments.ts';
import { RatchetError } from '../../core/errors.ts';
import type { EnvironmentVariables } from '../../core/settings/environments.ts';
import type { RunSpec } from '../../config/run-spec.ts';
import { readVariablesFile } from '../../backends/environments/variables.ts';
import { Refused } from '../refused.ts';

/** Paths of the files of `env_files`, by their names in the run file. */
interface VariableFiles {
  readonly paths: ReadonlyMap<string, string>;
  readonly warnings: readonly string[];
}

/**
 * Finds the files with variables of a run's environments, each in the first folder that has it. Reads them to validate
 * them; only the names of variables are shown.
 */
export async function locateVariableFiles(
  spec: RunSpec,
  { folders, areAllHere }: { readonly folders: readonly string[]; readonly areAllHere: boolean },
  tried: (look: () => Promise<readonly string[]>) => Promise<readonly string[] | null>,
): Promise<VariableFiles> {
  const entries = [...spec.environments, ...(spec.eval?.environments ?? [])];
  const written = new Set(entries.flatMap(({ variables }) => variables?.files ?? []));
  const paths = new Map<string, string>();
  const warnings: string[] = [];
  for (const file of written) {
    const candidates = folders.map((folder) => path.resolve(folder, file));
    const found = candidates.find((candidate) => existsSync(candidate)) ?? candidates[0]!;
    paths.set(file, found);
    const names = await tried(() => Promise.resolve(namesIn(found)));
    const kept = (names ?? []).filter(isKeptFromEnvironments);
    if (kept.length > 0) {
      warnings.push(
        `env_files: ${kept.join(', ')} of ${file} ${kept.length === 1 ? 'is' : 'are'} not given to environments: credentials of the store, of Temporal and of metrics stay with Ratchet.`,
      );
    }
  }
  // A missing environment may be a Python package, as most are.
  if (areAllHere && written.size > 0 && !entries.some((entry) => environmentTraits(entry).readsVariableFiles)) {
    warnings.push('env_files has no effect: none of the environments is a Python package.');
  }
  return { paths, warnings };
}

function namesIn(file: string): string[] {
  try {
    return Object.keys(readVariablesFile(file));
  } catch (error) {
    if (!(error instanceof RatchetError)) throw error;
    throw new Refused({ expected: 'files of lines NAME=value', received: error.message }, error);
  }
}

/** The entries with absolute paths of their files. */
export function withVariableFiles<Entry extends { readonly variables?: EnvironmentVariables | undefined }>(
  entries: readonly Entry[],
  { paths }: VariableFiles,
): Entry[] {
  return entries.map((entry) =>
    entry.variables === undefined
      ? entry
      : { ...entry, variables: { ...entry.variables, files: entry.variables.files.map((file) => paths.get(file)!) } },
  );
}
