import { Command } from '@commander-js/extra-typings';
import { describeEffectiveness } from '../../../core/rl/effectiveness.ts';
import { countsByKind, encodeRanges } from '../../../core/rl/ledger.ts';
import { describeEffects } from '../../../core/rl/rollout/effects.ts';
import { type AuditedLineage, auditStore, type RunReport } from '../../../activities/audit-run.ts';
import { type CheckpointReport, listCheckpoints } from '../../../runs/versions/list-checkpoints.ts';
import { auditVersions, type VersionReport } from '../../../runs/versions/kept-versions.ts';
import type { RunPlace } from '../../../runs/run-access.ts';
import type { ReadAnew } from '../../../store/version-files.ts';
import { findRunFolder } from '../../stored/run-place.ts';
import { storeOption, withStore } from '../../typed/store-option.ts';
import { print, printJson } from '../../output/print.ts';

export const auditCommand = new Command('audit')
  .description(
    'prove from the commits alone that every group a run issued is accounted for; --weights: that the checkpoints are whole, too',
  )
  .argument('<run>')
  .option(...storeOption)
  .option('--weights', 'read every checkpoint and all other stored weights, and compare them with their sha256')
  .option('--json', 'as one JSON object')
  .action(async (run, options) => {
    const place = await findRunFolder(run, options.store);
    const ledger = await auditStore(place);
    const weights = options.weights ? await readWeights(place) : null;
    const report = { ...ledger, isSound: ledger.isSound && (weights === null || isWhole(weights)), ...weights };
    if (options.json) printJson(report, 2);
    else
      print(
        [
          ...describeAudit(report),
          ...describeWeights(weights, withStore(`npx ratchet-rl audit ${run} --weights`, options.store)),
        ].join('\n'),
      );
    if (!report.isSound) process.exitCode = 1;
  });

interface AuditedWeights {
  readonly checkpoints: readonly CheckpointReport[];
  /** Versions whose weights exist without a checkpoint. */
  readonly otherVersions: readonly VersionReport[];
}

async function readWeights(place: RunPlace): Promise<AuditedWeights> {
  const anew: ReadAnew = new Map();
  const { checkpoints } = await listCheckpoints(place, anew);
  const read = checkpoints.filter(({ state }) => state !== 'unsealed');
  const besides = new Set(read.map(({ lineage, step }) => `${lineage}/${step}`));
  return { checkpoints, otherVersions: await auditVersions(place, { besides, anew }) };
}

function isWhole({ checkpoints, otherVersions }: AuditedWeights): boolean {
  return (
    checkpoints.every(({ state }) => state !== 'damaged') && otherVersions.every(({ problem }) => problem === null)
  );
}

/** The ledger does not check files, so the report says whether weights were checked. */
function describeWeights(weights: AuditedWeights | null, toRead: string): string[] {
  if (weights === null) return [`the ledger is proven from the commits; weights were not read (${toRead} does)`];
  const { checkpoints, otherVersions } = weights;
  const sealed = checkpoints.filter(({ state }) => state === 'sealed');
  const others = otherVersions.filter(({ problem }) => problem === null);
  return [
    `weights: ${sealed.length} checkpoints agree with their sha256 (steps ${stepsOf(sealed)})`,
    ...(others.length === 0
      ? []
      : [`  and so do ${others.length} versions without a checkpoint (steps ${stepsOf(others)})`]),
    ...checkpoints
      .filter(({ state }) => state === 'damaged')
      .map(({ step, lineage, problem }) => `  ✗ checkpoint ${step} of ${lineage}: ${problem}`),
    ...otherVersions
      .filter(({ problem }) => problem !== null)
      .map(({ step, lineage, problem }) => `  ✗ version ${step} of ${lineage}, no checkpoint: ${problem}`),
  ];
}

function stepsOf(found: readonly { readonly step: number }[]): string {
  return encodeRanges(found.map(({ step }) => step)) || 'none';
}

function describeAudit(report: RunReport): string[] {
  const lines = report.lineages.flatMap((lineage) => describeLineage(lineage, lineage.lineage === report.current));
  if (report.lineages.length > 1) {
    const left = report.superseded > 0 ? [`${report.superseded} superseded`] : [];
    lines.push(`all lineages: ${report.issued} groups issued = ${sum(report.counts, report.pending, left)}`);
  }
  return [...lines, report.isSound ? `${report.run} is sound ✓` : `${report.run} is NOT SOUND ✗`];
}

function describeLineage(lineage: AuditedLineage, isCurrent: boolean): string[] {
  const { from, first, last, issued, counts, pending, superseded, timedOut } = lineage;
  const effects = describeEffects(lineage.effects);
  const late = Object.entries(timedOut).map(([name, count]) => `${count} of ${name}`);
  const began = from
    ? `, from step ${from.step} of ${from.lineage}${lineage.origin ? '' : ` of the run ${from.run}`}`
    : '';
  return [
    `${lineage.lineage}${isCurrent ? ' (current)' : ''}: steps ${first}–${last}${began}`,
    `  ${issued} groups issued = ${sum(counts, pending, [])}${superseded > 0 ? `; ${superseded} of them superseded` : ''}`,
    ...(late.length === 0 ? [] : [`  rollouts that were not finished in time: ${late.join(', ')}`]),
    ...(effects === '' ? [] : [`  calls with an effect: ${effects}`]),
    ...(lineage.last > first ? [`  ${describeEffectiveness(lineage.effectiveness)}`] : []),
    ...faults(lineage).map((fault) => `  ✗ ${fault}`),
  ];
}

function faults({ missingSteps, brokenLinks, holes, duplicates, takenOverWrongly }: AuditedLineage): string[] {
  const named: readonly (readonly [readonly number[], (which: string) => string])[] = [
    [missingSteps, (which) => `commits are missing: step ${which}`],
    [
      brokenLinks,
      (which) => `commit ${which} does not continue the one before it: it or that one was changed or removed`,
    ],
    [holes, (which) => `groups unaccounted for: ${which}`],
    [duplicates, (which) => `groups accounted for twice: ${which}`],
    [takenOverWrongly, (which) => `groups taken over otherwise than they were left: ${which}`],
  ];
  return named.flatMap(([numbers, tell]) => (numbers.length > 0 ? [tell(encodeRanges(numbers))] : []));
}

function sum(counts: Readonly<Record<string, number>>, pending: number, more: readonly string[]): string {
  const parts = Object.entries(countsByKind(counts)).map(([state, count]) => `${count} ${state}`);
  return [...parts, `${pending} pending`, ...more].join(' + ');
}
