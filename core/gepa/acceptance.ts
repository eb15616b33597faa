import type { Acceptance, ProposalSelection } from './search-state.ts';

/** Scores of parent and child on common examples. null: missing, which counts as −∞. */
interface Proposal {
  readonly before: readonly number[] | null;
  readonly after: readonly number[] | null;
}

/** Whether a child did well enough on its minibatch to be validated. */
export function isAccepted(acceptance: Acceptance, { before, after }: Proposal): boolean {
  const [was, is] = [total(before), total(after)];
  return acceptance === 'strict_improvement' ? is > was : is >= was;
}

/** Indices of the proposals to validate: accepted ones in order, or those with the largest gain first. */
export function selectProposals(
  selection: ProposalSelection,
  acceptance: Acceptance,
  proposals: readonly Proposal[],
): number[] {
  const accepted = proposals.flatMap((proposal, i) => (isAccepted(acceptance, proposal) ? [i] : []));
  if (selection === 'all') return accepted;
  const gain = (i: number): number => total(proposals[i]!.after) - total(proposals[i]!.before);
  return accepted.toSorted((a, b) => gain(b) - gain(a) || a - b).slice(0, selection === 'best' ? 1 : selection.top);
}

export function total(scores: readonly number[] | null): number {
  return scores === null ? -Infinity : scores.reduce((sum, score) => sum + score, 0);
}
