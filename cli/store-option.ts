/** The option of the commands that look at a run's folder. Where it is left out, `findRunFolder` looks. */
export const storeOption = [
  '--store <uri>',
  'where the runs are (default: ./outputs, else where the run itself says)',
] as const;

/** The option of commands that use what a stored run names. Each value is one thing, as the refusal without it says. */
export const grantOption = [
  '--grant <line>',
  'grant one thing that the run names; without it the command says what there is to type (repeatable)',
  (value: string, before: readonly string[] | undefined): string[] => [...(before ?? []), value],
] as const;
