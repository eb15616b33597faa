/** The option of the commands that look at a run's folder. Where it is left out, `findRunFolder` looks. */
export const storeOption = [
  '--store <uri>',
  'where the runs are (default: ./outputs, else where the run itself says)',
] as const;
