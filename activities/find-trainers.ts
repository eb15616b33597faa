/** A GPU worker that Temporal knows, and the workflow it is held by. */
interface KnownTrainer {
  readonly identity: string;
  readonly heldBy: string | null;
}

export interface KnownTrainers {
  readonly trainers: readonly KnownTrainer[];
  /** Last poll of any worker, ISO time; null without a recent one. */
  readonly lastSeen: string | null;
}

/** Describes GPU workers and what each is busy with, for a run that waits for one. */
export const createDescribeTrainers =
  (find: () => Promise<KnownTrainers>) =>
  async ({ workflowId }: { readonly workflowId: string }): Promise<string> => {
    const { trainers, lastSeen } = await find();
    if (trainers.length === 0) {
      return `a GPU worker: none ${lastSeen === null ? 'known' : `since ${lastSeen}`}; start one with: npx ratchet-rl worker --role train`;
    }
    const others = trainers.flatMap(({ heldBy }) => (heldBy !== null && heldBy !== workflowId ? [heldBy] : []));
    const shown = others.slice(0, 3).join(', ') + (others.length > 3 ? ', …' : '');
    const silent = trainers.length - others.length; // one that was killed is known for another minute
    const parts = [
      `${trainers.length} known`,
      ...(others.length > 0 ? [`busy with run ${shown}`] : []),
      ...(silent > 0 ? [`${silent} not answering`] : []),
    ];
    return `a GPU worker: ${parts.join(', ')}`;
  };
