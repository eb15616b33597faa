import { environmentFinder } from '../../backends/environments/find.ts';
import { RatchetError } from '../../core/errors.ts';
import type { LoadOptions, ReadRunFile } from '../../load/load-run-config.ts';
import { environmentIdsOf, kindOf, parseConfigFile } from '../../config/parse-config-file.ts';
import type { TomlFile } from '../../config/toml/parse-toml.ts';
import { formatProblems, type Problem } from '../../config/toml/problems.ts';
import { summaryOf } from '../describe/file-summary.ts';

const titles = {
  eval: 'evaluations (ratchet eval run)',
  gepa: 'prompt optimization (ratchet gepa run)',
  endpoints: 'a registry of endpoints',
};

/** Refuses to train with a file whose own contents say that it is for something else. */
export function refuseOtherKind(toml: TomlFile): void {
  const { file } = toml;
  const { kind, why } = kindOf(toml, file);
  if (kind === 'run') return;
  const says = `${file}: expected a run file, got ${titles[kind]}, because of ${why}. To see what it says: npx ratchet-rl check ${file}`;
  throw new RatchetError('ConfigInvalid', says);
}

interface OtherKind {
  readonly kind: 'eval' | 'gepa' | 'endpoints';
  readonly problems: readonly Problem[];
  readonly lines: readonly string[];
  readonly json: object;
}

/**
 * Report of `check` on a file that is not a run: its dialect and why, warnings, its meaning, and environments that are
 * missing here. null for a run.
 */
export function otherKind(
  { toml }: Pick<ReadRunFile, 'toml'>,
  { projectFolder, overrides }: Pick<LoadOptions, 'projectFolder'> & Required<Pick<LoadOptions, 'overrides'>>,
): OtherKind | null {
  const { file } = toml;
  const parsed = parseConfigFile(file.endsWith('.py') ? toml.text : toml, { file, overrides });
  if (parsed.kind === 'run') return null;
  if (!parsed.ok) {
    const { kind, problems } = parsed;
    return { kind, problems, lines: formatProblems(problems).split('\n'), json: { kind, file, ok: false, problems } };
  }
  const find = environmentFinder({ projectFolder });
  const environments = environmentIdsOf(parsed).flatMap((id) => {
    const found = find(id, { builtin: false });
    if (found.ok) return found.said === undefined ? [] : [found.said];
    return [`not here: ${found.received}${found.suggestion === undefined ? '' : `\n    → ${found.suggestion}`}`];
  });
  const lines = [
    `${file}: ${titles[parsed.kind]}, because of ${parsed.why}`,
    ...parsed.warnings.map((warning) => `warning: ${warning}`),
    ...summaryOf(parsed),
    ...environments,
  ];
  const { ok, ...json } = parsed;
  return { kind: parsed.kind, problems: [], lines, json: { file, ok, problems: [], environments, ...json } };
}
