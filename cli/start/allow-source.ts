import path from 'node:path';
import { environmentsOf, grantNamed, keysApart, namedIn } from '../../load/grants/grant.ts';
import { type LoadOptions, loadRunConfig } from '../../load/load-run-config.ts';
import { linesOfStore, localRoot } from '../../store/index.ts';
import { ConfigProblems } from '../../config/toml/problems.ts';
import type { RunSpec } from '../../config/run-spec.ts';
import { grants } from '../../host/grants.ts';
import { isWithin } from '../../host/trusted-files.ts';
import type { RunPlace } from '../../runs/run-access.ts';
import { areOwn, askGrants, type Asker, type GrantOptions, isChanged } from './ask-grants.ts';
import { isTypedStore } from '../stored/run-place.ts';

/** The source of a run that is loaded again: the file and settings named in its folder, and what was typed now. */
interface StoredSource {
  readonly place: RunPlace;
  readonly file: string;
  /** Like `LoadOptions`, with only the settings from the folder. */
  readonly load: LoadOptions;
  /** Typed now, over those of the folder. */
  readonly typed: Readonly<Record<string, string>>;
  /** `--config FILE` was typed. */
  readonly isFileTyped: boolean;
  /** `--store URI` as typed. */
  readonly store: string | undefined;
}

/**
 * Asks for grants that a run needs and only its folder names. Typed settings count as granted, and so do the contents
 * of a file that was typed or is this user's own; the settings that the folder keeps beside its file do not.
 */
export async function allowSource(
  source: StoredSource,
  spec: RunSpec,
  options: GrantOptions,
  asker?: Asker,
): Promise<void> {
  const { place, file, load, typed, isFileTyped, store } = source;
  const files = [file, ...(load.over ?? []).map((layer) => layer.file)];
  const isOwn = isFileTyped || areOwn(place, files);
  const all = linesOf(spec, source);
  // If the folder's settings alone are not a valid run, the typed part cannot be separated.
  const stored = Object.keys(typed).length === 0 ? all : ((await linesWith(source, load.overrides ?? {})) ?? all);
  const said = isOwn ? ((await linesWith(source, {})) ?? []) : [];
  // Several files are granted one by one, so that no key of one goes to a server of another.
  const ofFile = files.length === 1 ? said : keysApart(said).rest;
  const lines = all.filter((line) => stored.includes(line) && (!ofFile.includes(line) || isChanged(line)));
  const asked = [...(isOwn ? [] : files), ...lines];
  const endpoints = [spec.inference, spec.teacher].flatMap(
    (pool) => (pool && 'endpoints' in pool && pool.endpoints) || [],
  );
  await askGrants(place, { lines: asked, environments: environmentsOf(spec), endpoints }, options, asker);
  const named = [...files, ...all, ...(isTypedStore(place, store) ? linesOfStore(place.store) : [])];
  grantNamed(
    load.projectFolder,
    named.filter((line) => !asked.includes(line)),
  );
}

/** Grant lines of a file with some of the settings; null if it is not a valid run file without the others. */
async function linesWith(source: StoredSource, overrides: Readonly<Record<string, string>>): Promise<string[] | null> {
  const { load, file } = source;
  const loaded = await loadRunConfig(file, { ...load, overrides, isOnlyLookedAt: true }).catch((error: unknown) => {
    if (error instanceof ConfigProblems) return null;
    throw error;
  });
  return loaded === null ? null : linesOf(loaded.spec, source);
}

/** The store that the run was found in needs no new grant. Another folder would be written to. */
function linesOf(spec: RunSpec, { place, load }: StoredSource): string[] {
  const { uri } = spec.store;
  const found = uri === place.store ? linesOfStore(uri) : [];
  const folder = uri.startsWith('file:') && uri !== place.store ? localRoot(uri) : null;
  const isElsewhere = folder !== null && !isWithin(load.projectFolder, path.resolve(folder));
  const named = namedIn(spec).filter((line) => !found.includes(line));
  return isElsewhere ? [...new Set([...named, `${grants.store}${uri}`])] : named;
}
