import { present } from '../core/present.ts';
import path from 'node:path';
import { isTableAlone, type Layer } from '../config/toml/layers.ts';
import type { ConfigLayer } from '../core/config-layer.ts';
import { parseRunConfig } from '../config/parse-run-config.ts';
import { ConfigProblems, type Place, type Problem, type ReadAs } from '../config/toml/problems.ts';
import type { Advice, MissingEnvironment } from '../config/run-config.ts';
import { parseToml, type TomlFile } from '../config/toml/parse-toml.ts';
import type { KeyPath } from '../config/toml/positions.ts';
import { RatchetError } from '../core/errors.ts';
import type { RunSpec } from '../config/run-spec.ts';
import { environmentFinder } from '../backends/environments/find.ts';
import { linesOfStore, resolveStoreUri } from '../store/index.ts';
import { grantByFile, linesOfModels } from './grants/grant.ts';
import { resolvePath } from './paths.ts';
import { promptsIn } from './grants/prompt-files.ts';
import { readRunText } from './run-text.ts';
import { withFiles } from './grants/named-files.ts';
import type { SentFiles } from './sent-files.ts';
import { tellsContent, withoutContent } from '../backends/untold.ts';

export interface LoadOptions {
  /** Folder for relative paths. */
  readonly projectFolder: string;
  /** Dotted keys as on the command line. */
  readonly overrides?: Readonly<Record<string, string>>;
  readonly run?: string;
  /** The name of the dialect the file is written in; missing = the one that its keys show. */
  readonly dialect?: string;
  /** Laid over the file from left to right. Their paths are relative to the first file's folder. */
  readonly over?: readonly ConfigLayer[];
  /** Whether an existing run may be read in any store; without it, only in folders of this machine. */
  readonly reachesStore?: boolean;
  /**
   * Files as they were where the run was started. Even where only trusted files are accepted, the run file is still
   * read from here.
   */
  readonly sent?: SentFiles | undefined;
  /** The file, when it was read before. */
  readonly read?: ReadRunFile;
  /** Only to be examined: missing environments are not an error, and unsuitable files are reported in `problems`. */
  readonly isOnlyLookedAt?: boolean;
}

export interface LoadedConfig {
  readonly spec: RunSpec;
  readonly warnings: readonly string[];
  readonly readAs: ReadAs;
  /** Missing environments; empty unless the file is only examined. */
  readonly missing: readonly MissingEnvironment[];
  /** Settings outside the rules of thumb. */
  readonly advice: readonly Advice[];
  /** Problems of files that the config names; empty unless it is only examined. */
  readonly problems: readonly Problem[];
  /** Place of one of our fields in the file, by its names. */
  readonly placeOf: (...names: KeyPath[]) => Place;
  /** Step to resume from, if the config names one: −1 = the latest. */
  readonly resumeStep: number | null;
  /** Rows of `[sft] data` as a run stores them; null without any, or when an existing run has its own. */
  readonly sftRows: Uint8Array | null;
  /** Text of `[tokenizer] chat_template`; null without one, or when an existing run has its own. */
  readonly chatTemplate: string | null;
  /** Files to send when starting a run. */
  readonly sent: SentFiles;
}

/** A run file and those laid over it, read and parsed once. */
export interface ReadRunFile {
  readonly toml: TomlFile;
  readonly over: readonly Layer[];
  /** Contents by file name as typed. */
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
 * A table accepts any contents, and a run's settings reveal them. If files are not open to everyone, a file for a
 * table is accepted only from a caller who sends its text, which proves access.
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
    // A valid run file reveals its settings in every run anyway.
    const isTold = tellsContent() || parseRunConfig(read.toml, asItStands).ok;
    throw isTold
      ? new ConfigProblems(parsed.problems, parsed.readAs)
      : withoutContent(parsed.problems, 'a run file, with settings that Ratchet knows');
  }
  const isAsItStands = Object.keys(overrides).length === 0;
  const store = { uri: resolveStoreUri(parsed.spec.store.uri, projectFolder) };
  const { model, teacher } = parsed.spec;
  const models = [model, teacher?.folder ?? null]
    .filter((each) => each !== null && /^[./]/.test(each))
    .map((each) => resolvePath(each!, { folder, projectFolder }));
  grantByFile([...linesOfStore(store.uri), ...linesOfModels(models)], isAsItStands);
  const own = isAsItStands ? parsed : parseRunConfig(read.toml, asItStands);
  const ownPrompts = own.ok ? promptsIn(own.spec) : new Set<string>();
  return withFiles({ ...parsed, spec: { ...parsed.spec, store } }, { folder, texts: read.texts, ownPrompts }, options);
}

/** The same for a file that is only examined; null for an invalid run file, which its next reader reports. */
export async function lookAtRunFile(file: string, options: LoadOptions): Promise<LoadedConfig | null> {
  try {
    return await loadRunConfig(file, { ...options, isOnlyLookedAt: true });
  } catch (error) {
    if (error instanceof ConfigProblems) return null;
    throw error;
  }
}

/** Loads an examined file for training: read again only to be refused. */
export async function requireWhole(
  looked: LoadedConfig | null,
  file: string,
  options: LoadOptions,
): Promise<LoadedConfig> {
  const isWhole = looked !== null && looked.missing.length === 0 && looked.problems.length === 0;
  return isWhole ? looked : loadRunConfig(file, options);
}
