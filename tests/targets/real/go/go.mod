module torture

go 1.19
