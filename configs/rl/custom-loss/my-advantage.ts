/**
 * A custom advantage: one number for each reward of a group. This one is leave-one-out (RLOO, Ahmadian et al. 2024,
 * §2.2): each reward minus the mean of the others.
 */
export default function advantage(rewards: readonly number[]): number[] {
  const total = rewards.reduce((sum, reward) => sum + reward, 0);
  const others = Math.max(1, rewards.length - 1);
  return rewards.map((reward) => reward - (total - reward) / others);
}
