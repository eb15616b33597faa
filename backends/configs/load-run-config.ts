import { present } from '../../core/present.ts';
import path from 'node:path';
import { isTableAlone, type Layer } from '../../config/layers.ts';
import {
  type Advice,
  type MissingEnvironment,
  type NotYet,
  parseRunConfig,
  type ReadAs,
} from '../../config/parse-run-config.ts';
import { parseToml, type TomlFile } from '../../config/parse-toml.ts';
import type { KeyPath } from '../../config/positions.ts';
import { ConfigProblems, type Place, type Problem } from '../../config/problems.ts';
import { RatchetError } from '../../core/errors.ts';
import type { RunSpec } from '../../config/run-spec.ts';
import { environmentFinder } from '../environments/find.ts';
import { linesOfStore, resolveStoreUri } from '../store/index.ts';
import { grantByFile, linesOfModels } from './grant.ts';
import { resolvePath } from './paths.ts';
import { promptsIn } from './prompt-files.ts';
import { readRunText } from './run-text.ts';
import { withFiles } from './named-files.ts';
import type { SentFiles } from './sent-files.ts';
import { tellsContent, withoutContent } from '../untold.ts';

/** A file that is laid over those before it; `section` is the table it lies in, dotted. */
export interface ConfigLayer {
  readonly file: string;
  readonly section?: string;
}

export interface LoadOptions {
  /** Relative paths start here. */
  readonly projectFolder: string;
  /** Dotted keys as on the command line. */
  readonly overrides?: Readonly<Record<string, string>>;
  readonly run?: string;
  /** The name of the dialect the file is written in; missing = the one that its keys show. */
  readonly dialect?: string;
  /** Laid over the file from left to right. Files that they name are looked for from the first file's folder. */
  readonly over?: readonly ConfigLayer[];
  /** Whether a run that is there may be looked at in any store; without it, in folders of this machine alone. */
  readonly reachesStore?: boolean;
  /** As it was where the run was started. Where only trusted files are read, it is read here all the same. */
  readonly sent?: SentFiles | undefined;
  /** The file, where it was read before. */
  readonly read?: ReadRunFile;
  /** Only to be looked at: environments that are not here are no error, and files that will not do are told in `problems`. */
  readonly isOnlyLookedAt?: boolean;
}

export interface LoadedConfig {
  readonly spec: RunSpec;
  readonly warnings: readonly string[];
  readonly readAs: ReadAs;
  /** Environments that are not here; none unless the file is only looked at. */
  readonly missing: readonly MissingEnvironment[];
  /** What is read and kept, and not yet honoured. */
  readonly notYet: readonly NotYet[];
  /** What lies outside of the rules of thumb. */
  readonly advice: readonly Advice[];
  /** Of files that the config names; empty unless it is only looked at. */
  readonly problems: readonly Problem[];
  /** Where a field of ours was written, by its names. */
  readonly placeOf: (...names: KeyPath[]) => Place;
  /** The step to go on from, where the config asks for one: −1 = the latest. */
  readonly resumeStep: number | null;
  /** The rows of `[sft] data` as a run stores them; null where there are none, or the run that is there has its own. */
  readonly sftRows: Uint8Array | null;
  /** The text of `[tokenizer] chat_template`; null where there is none, or the run that is there has its own. */
  readonly chatTemplate: string | null;
  /** For whoever starts a run with it. */
  readonly sent: SentFiles;
}

/** A run file and those that are laid over it: read and parsed once, for whoever asks what they say. */
export interface ReadRunFile {
  readonly toml: TomlFile;
  readonly over: readonly Layer[];
  /** By the name of the file, as typed. */
  readonly texts: Readonly<Record<string, string>>;
}

export async function readRunFile(
  file: string,
  { projectFolder, over = [], sent }: Pick<LoadOptions, 'projectFolder' | 'over' | 'sent'>,
): Promise<ReadRunFile> {
  const texts: Record<string, string> = {};
  const readText = async (name: string): Promise<string> =>
    (texts[name] ??= await readRunText(path.resolve(projectFolder, name), name, sent));
  const toml = parseToml(isTableAlone(file, over) ? '' : await readText(file), file);
  const layers: Layer[] = [];
  for (const layer of over) {
    const text = await readText(layer.file);
    requireSent(layer, text, sent);
    layers.push({ ...layer, text, toml: parseToml(text, layer.file) });
  }
  return { toml, over: layers, texts };
}

/**
 * A table may take whatever a file holds, and a run tells it in its settings. So where files are not told to everybody, a file that is put
 * into one is taken from those alone who have it.
 */
function requireSent({ file, section }: ConfigLayer, text: string, sent: SentFiles | undefined): void {
  if (section === undefined || tellsContent() || sent?.texts[file] === text) return;
  throw new RatchetError(
    'ConfigInvalid',
    `${file} is not put into [${section}] through Temporal: expected its text with the call, found none or another. Start the run with npx ratchet-rl train in this folder, which sends it.`,
  );
}

/** A TOML file as a run spec with every path made absolute. Throws `ConfigProblems` (ConfigInvalid) naming all problems at once. */
export async function loadRunConfig(file: string, options: LoadOptions): Promise<LoadedConfig> {
  const { projectFolder, overrides = {}, run, dialect, isOnlyLookedAt = false } = options;
  const read = options.read ?? (await readRunFile(file, options));
  const folder = path.dirname(path.resolve(projectFolder, file));
  const asItStands = {
    file,
    findEnvironment: environmentFinder({ projectFolder, fileFolder: folder }),
    ...present({ dialect }),
    over: read.over,
  };
  const asked = { ...asItStands, overrides, isOnlyLookedAt, ...present({ runName: run }) };
  const parsed = parseRunConfig(read.toml, asked);
  if (!parsed.ok) {
    // If the file is a run file as it stands, every run of it tells its settings anyway.
    const isTold = tellsContent() || parseRunConfig(read.toml, asItStands).ok;
    throw isTold
      ? new ConfigProblems(parsed.problems, parsed.readAs)
      : withoutContent(parsed.problems, 'a run file, with settings that Ratchet knows');
  }
  const store = { uri: resolveStoreUri(parsed.spec.store.uri, projectFolder) };
  const { model, teacher } = parsed.spec;
  const models = [model, teacher?.folder ?? null]
    .filter((each) => each !== null && /^[./]/.test(each))
    .map((each) => resolvePath(each!, { folder, projectFolder }));
  grantByFile([...linesOfStore(store.uri), ...linesOfModels(models)], Object.keys(overrides).length === 0);
  const own = parseRunConfig(read.toml, asItStands);
  const ownPrompts = own.ok ? promptsIn(own.spec) : new Set<string>();
  return withFiles({ ...parsed, spec: { ...parsed.spec, store } }, { folder, texts: read.texts, ownPrompts }, options);
}
