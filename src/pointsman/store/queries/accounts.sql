-- name: find_account
SELECT {account} FROM account WHERE tenant = :tenant

-- name: add_spending
INSERT INTO {new account}
    ON CONFLICT (tenant) DO UPDATE
   SET spent_usd = account.spent_usd + excluded.spent_usd, tokens_in = account.tokens_in + excluded.tokens_in,
       tokens_out = account.tokens_out + excluded.tokens_out,
       cost_is_estimated = account.cost_is_estimated OR excluded.cost_is_estimated

-- name: set_account_budgets
INSERT INTO {new account}
    ON CONFLICT (tenant) DO UPDATE SET budget_usd = excluded.budget_usd
